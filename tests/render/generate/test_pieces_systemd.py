"""``generate systemd``: the real systemd takes every drop-in, and what a host says stays one word of it."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import systemd_here
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import Seen, recording

from conftest import HOSTS
from torchtune_sys.errors import CannotWrite, UserError
from torchtune_sys.host.files import write_below
from torchtune_sys.model.job import JobVariable
from torchtune_sys.remediation.plan.units import NAMES, UnitLimit, limits
from torchtune_sys.render.generate import units
from torchtune_sys.rules import CATALOGUE

UNIT = "[Unit]\nDescription=A job\n[Service]\nExecStart=/bin/true\n"
LIMITS = [rule for rule in CATALOGUE if rule.family == "limits"]
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in {rule.id for rule in LIMITS})


def analysed(folder: Path, name: str, drop_in: str) -> str:
    """What systemd says of a unit with the drop-in. (It exits 0 over an unknown key.)"""
    (folder / f"{name}.d").mkdir(parents=True)
    (folder / name).write_text(UNIT)
    (folder / f"{name}.d" / "90-torchtune-sys.conf").write_text(drop_in)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(folder / name)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return "\n".join(row for row in done.stderr.splitlines() if "90-torchtune-sys" in row or name in row)


needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")


@needs_systemd
def test_the_check_sees_a_wrong_key(tmp_path: Path) -> None:
    assert "LimitMEMLOK" in analysed(tmp_path / "a", "train.service", "[Service]\nLimitMEMLOK=1\n")
    assert "Failed to parse" in analysed(tmp_path / "b", "train.service", "[Service]\nLimitNOFILE=none\n")


@needs_systemd
def test_the_units_of_all_failing_hosts(tmp_path: Path) -> None:
    made = {}
    for name in FAILING:
        seen = Seen(recording(name), LIMITS)
        text = units.service(limits(seen.results), ())
        made[text] = name
        for file in seen.plan.files:
            if file.path.startswith("/etc/systemd/system/"):
                made[file.content] = name
    names = {row.partition("=")[0] for text in made for row in text.splitlines() if "=" in row and row[0] != "#"}
    print(f"{len(FAILING)} hosts, {len(made)} drop-ins, {sorted(names)}")
    assert len(FAILING) > 15 and len(made) > 5 and {"LimitMEMLOCK", "LimitNOFILE", "LimitNPROC", "TasksMax"} <= names
    for number, text in enumerate(made):
        assert analysed(tmp_path / str(number), "train.service", text) == "", text


@needs_systemd
def test_every_limit_is_known_to_systemd(tmp_path: Path) -> None:
    known = [UnitLimit(name=name, value="infinity", rule="r", why="w") for name in (*NAMES.values(), "TasksMax")]
    assert analysed(tmp_path, "train.service", units.service(known, ())) == ""


@needs_systemd
def test_an_environment_that_would_break_out(tmp_path: Path) -> None:
    value = 'a b\n[Service]\nExecStartPre=/bin/false\\ "$(reboot)" %n 50% \'x'
    text = units.service((), [JobVariable(name="A", value=value, reason="two\nlines\\", source="s")])
    assert analysed(tmp_path, "train.service", text) == ""
    parsed = configparser.RawConfigParser(strict=False, delimiters="=")
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    assert parsed.sections() == ["Service"] and list(parsed["Service"]) == ["Environment"]


@systemd_here.needs_systemd
def test_a_service_has_the_limits_of_its_drop_in(tmp_path: Path) -> None:
    """Those of all failing hosts, and as defaults of every service (a user's instance reads user.conf.d as system.conf.d)."""
    asked = [found for name in FAILING if (found := limits(Seen(recording(name), LIMITS).results))]
    every = {limit.name: limit for found in asked for limit in found if limit.name in NAMES.values()}
    files = {f"/run/systemd/user.conf.d/{units.NAME}": units.defaults(every.values())}
    for number, found in enumerate(asked):
        files[f"/run/systemd/user/t{number}.service"] = UNIT
        files[f"/run/systemd/user/t{number}.service.d/{units.NAME}"] = units.service(found, ())
    shows = "".join(f"echo unit {number}; systemctl --user show t{number}.service\n" for number in range(len(asked)))
    done = systemd_here.told(tmp_path, files, f"echo unit defaults; systemctl --user show\n{shows}")
    heads, *parts = done.stdout.split("unit ")
    told = {part.partition("\n")[0]: dict(row.partition("=")[::2] for row in part.splitlines()[1:]) for part in parts}
    print(f"{len(FAILING)} hosts, {len(asked)} services, {sorted(every)}")
    assert heads == "" and len(asked) > 10 and {"LimitMEMLOCK", "LimitNOFILE"} <= set(every), done.stderr
    for number, found in enumerate(asked):
        assert {limit.name: limit.value for limit in found} == {
            limit.name: shown(told[str(number)], limit.name, limit.value) for limit in found
        }
    assert {name: shown(told["defaults"], f"Default{name}", limit.value) for name, limit in every.items()} == {
        name: limit.value for name, limit in every.items()
    }
    assert "90-torchtune-sys" not in done.stderr  # where it complains of a line, it names the file


LOGIND = """
mount -t tmpfs none /run
mkdir -p /run/dbus /run/systemd/logind.conf.d
cp "$1"/*.conf /run/systemd/logind.conf.d
dbus-daemon --system --fork --nopidfile
/lib/systemd/systemd-logind >"$1/log" 2>&1 & pid=$!
for turn in $(seq 1200); do busctl --list 2>/dev/null | grep -q login1 && break; sleep 0.05; done
busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager RemoveIPC
kill $pid
wait $pid
"""
LOGIND_NEEDS = ("dbus-daemon", "busctl", "unshare", "/lib/systemd/systemd-logind")


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, LOGIND_NEEDS)), reason=f"needs root and {', '.join(LOGIND_NEEDS)}"
)
@pytest.mark.parametrize("with_it", [True, False])
def test_logind_reads_its_drop_in(tmp_path: Path, with_it: bool) -> None:
    (file,) = Seen(recording("logind-removes-ipc.fail")).plan.files
    assert file.path.startswith("/etc/systemd/logind.conf.d/")
    if with_it:
        (tmp_path / "90.conf").write_text(file.content)
    argv = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "bash", "-c", LOGIND, "stage", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if "b " not in done.stdout:
        pytest.skip(f"no logind here: {done.stderr.strip()[-300:]}")
    assert done.stdout.strip() == ("b false" if with_it else "b true"), (tmp_path / "log").read_text()


def shown(properties: dict[str, str], name: str, wanted: str) -> str:
    """As it was written: the soft limit alone, or with the hard one behind it."""
    hard, soft = properties.get(name, ""), properties.get(f"{name}Soft", "")
    return f"{soft}:{hard}" if ":" in wanted else hard


def test_open_files_keep_the_hard_limit_of_systemd() -> None:
    found = {limit.name: limit for limit in limits(Seen(recording("nofile-limit-too-low.fail"), LIMITS).results)}
    assert found["LimitNOFILE"].value == "65536:524288"
    assert found["LimitMEMLOCK"].value == "infinity" and found["LimitMEMLOCK"].why.startswith("logins have it")


@pytest.mark.parametrize("unit", ["", "a b", "../x", "x/y", "$(x)", "a\nb", ".service", "@.service", "x" * 300])
def test_names_that_are_no_units(unit: str) -> None:
    with pytest.raises(UserError):
        units.drop_in(unit)


@settings(max_examples=200)
@given(st.text(max_size=30))
def test_a_drop_in_lies_below_systemd(unit: str) -> None:
    try:
        path = units.drop_in(unit)
    except UserError:
        return
    assert path.count("/") == 5 and ".." not in path.split("/")


def test_written_below_a_folder_unless_it_is_not_ours(tmp_path: Path) -> None:
    files = {"/etc/systemd/a.conf": f"{units.HEAD}\nx\n", "/etc/systemd/b.d/b.conf": f"{units.HEAD}\ny\n"}
    write_below(str(tmp_path), files, units.MARK)
    write_below(str(tmp_path), {**files, "/etc/systemd/a.conf": f"{units.HEAD}\nz\n"}, units.MARK)
    assert (tmp_path / "etc/systemd/a.conf").read_text().endswith("z\n")
    (tmp_path / "etc/systemd/b.d/b.conf").write_text("[Service]\n")
    with pytest.raises(CannotWrite, match="not made by torchtune-sys"):
        write_below(str(tmp_path), files, units.MARK)
    assert (tmp_path / "etc/systemd/a.conf").read_text().endswith("z\n")
    assert sorted(path.name for path in (tmp_path / "etc/systemd").rglob("*")) == ["a.conf", "b.conf", "b.d"]
    (tmp_path / "etc/systemd/b.d/b.conf").unlink()
    (tmp_path / "etc/systemd/b.d/b.conf").symlink_to("/dev/null")
    with pytest.raises(CannotWrite):
        write_below(str(tmp_path), files, units.MARK)
