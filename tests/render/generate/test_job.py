"""A job's environment, read back by what reads it: shells, systemd, a YAML parser; hostile values stay data."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from values import HOSTILE, variable

from torchtune_sys.errors import UserError
from torchtune_sys.model.job import JobVariable
from torchtune_sys.render.generate import job

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


def sourced(shell: str, text: str, folder: Path, **env: str) -> dict[str, str]:
    """The environment after the file was sourced, told NUL-separated by env(1)."""
    (folder / "job.env").write_bytes(text.encode())
    done = subprocess.run(
        [shell, "-euc", ". ./job.env; exec env -0"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert done.stderr == b""
    return dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=40, deadline=None)
@given(values=st.lists(VALUES, min_size=1, max_size=6), reason=VALUES)
@example(values=list(HOSTILE), reason="a\nexport EVIL=1\r\\")
@example(values=["two\nlines\n", "\n", "cr\r\n"], reason="\\")
def test_shells_read_back_every_value(folder: Path, shell: str, values: list[str], reason: str) -> None:
    text = job.shell([variable(value, f"V{at}", reason=reason) for at, value in enumerate(values)])
    found = sourced(shell, text, folder)
    assert {name: found.get(name) for name in (f"V{at}" for at in range(len(values)))} == {
        f"V{at}": v for at, v in enumerate(values)
    }
    assert "EVIL" not in found


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=25, deadline=None)
@given(value=VALUES)
@example(value="x'\nexport EVIL=1\n'")
def test_what_a_person_must_choose_is_only_shown(folder: Path, shell: str, value: str) -> None:
    assert not {"A_NAME", "EVIL"} & set(sourced(shell, job.shell([variable(value, sure=False)]), folder))


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_to_go_is_unset(folder: Path, shell: str) -> None:
    assert "A_NAME" not in sourced(shell, job.shell([variable(None)]), folder, A_NAME="old")


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=25, deadline=None)
@given(value=VALUES.filter(lambda text: "\n" not in text and "\r" not in text))
@example(value="$(id) 'x' \\n %s")
def test_a_task_prolog_prints_the_value_as_it_is(folder: Path, shell: str, value: str) -> None:
    """Slurm takes what stands after ``export NAME=`` to the end of the line, without quoting."""
    (folder / "prolog").write_text(job.slurm([variable(value), variable(None, "GONE"), variable("x", "SHOWN", sure=False)]))
    done = subprocess.run([shell, str(folder / "prolog")], capture_output=True, check=True, timeout=20)
    assert done.stdout.decode() == f"export A_NAME={value}\nunset GONE\n"


@pytest.mark.parametrize("form", [job.slurm, job.docker])
@pytest.mark.parametrize("value", ["a\nb", "a\r"])
def test_forms_of_one_line_refuse_several(form: object, value: str) -> None:
    with pytest.raises(UserError, match="several lines"):
        form([variable(value)])  # type: ignore[operator]


def docker_reads(text: str) -> dict[str, str | None]:
    """As docker's opts/file.go: lines beginning with # and empty ones are passed over; the name ends at the first ``=``."""
    found: dict[str, str | None] = {}
    for line in text.split("\n"):
        line = line.lstrip()
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            found[name] = value if equals else None
    return found


@given(value=VALUES.filter(lambda text: "\n" not in text and "\r" not in text), reason=VALUES)
def test_an_env_file_has_no_quoting(value: str, reason: str) -> None:
    text = job.docker([variable(value, reason=reason), variable(None, "GONE"), variable("x", "SHOWN", sure=False)])
    assert docker_reads(text) == {"A_NAME": value}


@pytest.mark.parametrize("form", [job.docker, job.kubernetes])
def test_a_library_of_the_host_is_not_preloaded_in_a_container(form: Callable[[list[JobVariable]], str]) -> None:
    text = form([variable("/usr/lib/libjemalloc.so.2", "LD_PRELOAD"), variable("x", "MALLOC_CONF")])
    said = [row for row in text.splitlines() if "LD_PRELOAD" in row or "libjemalloc" in row]
    assert said and all(row.startswith("# ") for row in said) and "only where the image has the library" in text
    assert any("MALLOC_CONF" in row and not row.startswith("#") for row in text.splitlines())
    for kept in (job.shell, job.systemd, job.slurm):
        assert "image" not in kept([variable("/usr/lib/libjemalloc.so.2", "LD_PRELOAD")])


def kubernetes_expands(value: str) -> str:
    """As third_party/forked/golang/expansion: ``$$`` is a dollar sign, ``$(NAME)`` a reference, any other ``$`` itself."""
    out, at = "", 0
    while at < len(value):
        if value[at] == "$" and value[at + 1 : at + 2] == "$":
            out, at = out + "$", at + 2
        elif value[at] == "$" and value[at + 1 : at + 2] == "(" and ")" in value[at:]:
            out, at = out + "EXPANDED", value.index(")", at) + 1
        else:
            out, at = out + value[at], at + 1
    return out


@settings(max_examples=200)
@given(values=st.lists(VALUES, min_size=1, max_size=5), reason=VALUES)
@example(values=[*HOSTILE, "$$(A)", "$(A)$$", "\x85\u2028\x7f\x1b", "\U0001f600", "- a: b", "yes", "1e3"], reason="\u2028evil: 1")
def test_yaml_and_kubernetes_read_back_every_value(values: list[str], reason: str) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(job.kubernetes([variable(value, f"V{at}", reason=reason) for at, value in enumerate(values)]))
    assert [(entry["name"], kubernetes_expands(entry["value"])) for entry in found["env"]] == [
        (f"V{at}", v) for at, v in enumerate(values)
    ]


def test_kubernetes_with_nothing_sure_is_still_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(job.kubernetes([variable("a\nb", sure=False), variable(None)])) == {"env": None}


def systemd_unquotes(word: str) -> str:
    """systemd.syntax(7): C escapes between double quotes; %% is one."""
    assert word[0] == word[-1] == '"'
    plain, out, at = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}, "", 1
    while at < len(word) - 1:
        if word[at] == "\\":
            out, at = out + plain[word[at + 1]], at + 2
        elif word[at] == "%":
            assert word[at + 1] == "%"
            out, at = out + "%", at + 2
        else:
            assert word[at] not in '"\n'
            out, at = out + word[at], at + 1
    return out


@given(value=st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40))
@example(value='a"b\\n%n\n\t$(id)')
def test_a_systemd_word_says_the_value(value: str) -> None:
    assert systemd_unquotes(job.systemd_word(value)) == value


def test_systemd_takes_no_control_characters() -> None:
    with pytest.raises(UserError, match="control characters"):
        job.systemd([variable("a\x1b[2Jb")])


def test_systemd_verifies_a_unit_with_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    values = [*HOSTILE, "two\nlines", "tab\there"]
    text = job.systemd([variable(value, f"V{at}", reason="a\\\nb") for at, value in enumerate(values)] + [variable(None, "GONE")])
    unit = tmp_path / "training-job.service"
    unit.write_text(f"[Unit]\nDescription=x\n{text}ExecStart=/bin/true\n")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "training-job" in line]
    assert complaints == [], complaints
    broken = tmp_path / "broken-job.service"
    broken.write_text(unit.read_text().replace('"V0=', '"V0 ='))
    told = subprocess.run(["systemd-analyze", "verify", str(broken)], capture_output=True, text=True, timeout=60)
    assert "broken-job" in told.stderr  # a wrong line is noticed


def test_a_pod_takes_neither_this_host_s_interface_nor_its_cores() -> None:
    seen = (
        JobVariable(name="OMP_NUM_THREADS", value="12", reason="96 cores for 8 ranks", source="s"),
        JobVariable(name="NCCL_SOCKET_IFNAME", value="eth7", reason="NCCL would take docker0", source="s"),
        JobVariable(name="GLOO_SOCKET_IFNAME", value="eth7", reason="Gloo would take docker0", source="s"),
        JobVariable(name="NCCL_DEBUG", value="WARN", reason="r", source="s"),
    )
    rows = job.kubernetes(seen).splitlines()
    assert [row for row in rows if row.startswith("- ")] == ["- name: NCCL_DEBUG"]
    assert "hostNetwork" in "".join(rows) and "the pod's limits" in "".join(rows)
    assert "export NCCL_SOCKET_IFNAME=eth7" in job.shell(seen)  # for a job on this host it is what was seen
