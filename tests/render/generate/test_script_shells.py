"""Generated scripts do the same whatever options the caller's shell has set, and are not to be sourced."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from provisions import of_steps, step
from script_plans import change, plan
from script_root import Root

from conftest import exhaustive
from torchtune_sys.model.actions import Sysctl
from torchtune_sys.model.install import InstallFile
from torchtune_sys.model.plan import FileLine, Plan, Unit, Value
from torchtune_sys.model.target import AtMost, OneOf
from torchtune_sys.render.generate.provision import provisioning
from torchtune_sys.render.generate.script import script

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")
SWAP, PAIR, OTHER, THP = "/proc/sys/vm/swappiness", "/proc/sys/vm/dirty_bytes", "/proc/sys/vm/dirty_ratio", "/sys/kernel/mm/thp"
FILE = "/etc/sysctl.d/99-torchtune-sys.conf"
NOTHING_IS_RUN = {"noexec", "onecmd"}
"""With these bash reads the script and runs nothing of it, or its first command alone."""


def _listed(*command: str) -> list[str]:
    return [line.split()[0] for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()]


OPTIONS = sorted(set(_listed("bash", "-c", "set -o")) - NOTHING_IS_RUN)
SHOPTS = _listed("bash", "-c", "shopt")
AT_ONCE = 9
"""So many of them are set together, each a stretch from the next: what belongs together (compat31 to compat44) is not in one set."""


def tuning() -> Plan:
    return plan(
        change(
            "vm.swappiness",
            Value(path=SWAP, value="10"),
            FileLine(path=FILE, key="vm.swappiness", text="vm.swappiness = 10"),
            action=Sysctl(key="vm.swappiness", target=AtMost(10)),
        ),
        change("vm.dirty_bytes", Value(path=PAIR, value="1073741824", counterpart=OTHER)),
        change(
            "thp",
            Value(path=THP, value="madvise"),
            FileLine(path=FILE, key="thp", text="kernel.thp = madvise"),
            action=Sysctl(key="thp", target=OneOf(("madvise", "always"))),
        ),
        change("unit", Unit(unit="nvidia-persistenced.service", enabled=True)),
    )


def laid(folder: Path) -> Root:
    root = Root(folder)
    root.put(SWAP, "60\n")
    root.put(PAIR, "0\n")
    root.put(OTHER, "20\n")
    root.put(THP, "always madvise [never]\n")
    root.put(FILE, "# mine\nvm.x = 1\n")
    return root


def done_and_undone(root: Root, bash: tuple[str, ...], **env: str) -> None:
    """Apply changes everything, and undo puts everything back: whatever the shell."""
    text, before = script(tuning()), root.state()
    root.put("/tmp/s.sh", text)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        argv = ["/usr/sbin/chroot", str(root.folder), "/bin/bash", *bash, "/tmp/s.sh", *args]
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=root.folder,
            env={"PATH": "/bin", **env},
            timeout=60,
            check=False,
            start_new_session=True,
        )

    ran = run()
    assert ran.returncode == 0, (bash, env, ran.stdout, ran.stderr)
    assert root.text(SWAP) == "10\n" and root.text(PAIR) == "1073741824\n" and root.text(THP) == "madvise\n", (bash, env)
    assert "vm.swappiness = 10" in root.text(FILE) and "vm.x = 1" in root.text(FILE)
    root.put(OTHER, "0\n")  # as the kernel does
    assert run("--check").returncode == 0, (bash, env)
    undone = run("--undo")
    assert undone.returncode == 0, (bash, env, undone.stdout, undone.stderr)
    assert root.text(SWAP) == "60\n" and root.text(THP) == "never\n" and root.text(OTHER) == "20\n", (bash, env)
    root.put(PAIR, "0\n")
    root.put(THP, "always madvise [never]\n")
    assert root.state() == before, (bash, env)


@pytest.mark.sampled(2)
@needs_root
@pytest.mark.parametrize(
    "bash", [("-m",), ("-i",), ("-f",), ("-k",), ("-o", "posix"), ("+B", "-O", "nullglob", "+O", "extquote")]
)
def test_options_on_the_command_line_change_nothing(bash: tuple[str, ...], tmp_path: Path) -> None:
    done_and_undone(laid(tmp_path), bash)


@needs_root
@pytest.mark.parametrize("option", ["monitor", "monitor:posix:noclobber:noglob:keyword:allexport:history:histexpand"])
def test_options_in_the_environment_change_nothing(option: str, tmp_path: Path) -> None:
    done_and_undone(laid(tmp_path), (), SHELLOPTS=option)


@needs_root
@pytest.mark.long
@pytest.mark.parametrize("option", exhaustive(*OPTIONS))
def test_no_option_of_set_changes_what_the_script_does(option: str, tmp_path: Path) -> None:
    done_and_undone(laid(tmp_path), (), SHELLOPTS=option)


@needs_root
@pytest.mark.long
@pytest.mark.parametrize("apart", range(len(OPTIONS) // AT_ONCE + 1))
def test_several_options_of_set_change_nothing(apart: int, tmp_path: Path) -> None:
    done_and_undone(laid(tmp_path), (), SHELLOPTS=":".join(OPTIONS[apart :: len(OPTIONS) // AT_ONCE + 1]))


@needs_root
@pytest.mark.long
@pytest.mark.parametrize("sign", ["-O", "+O"])
@pytest.mark.parametrize("apart", range(len(SHOPTS) // AT_ONCE + 1))
def test_several_options_of_shopt_change_nothing(apart: int, sign: str, tmp_path: Path) -> None:
    together = SHOPTS[apart :: len(SHOPTS) // AT_ONCE + 1]
    done_and_undone(laid(tmp_path), tuple(word for option in together for word in (sign, option)))


@needs_root
@pytest.mark.long
@pytest.mark.parametrize("sign", ["-O", "+O"])
@pytest.mark.parametrize("option", exhaustive(*SHOPTS))
def test_no_option_of_shopt_changes_what_the_script_does(option: str, sign: str, tmp_path: Path) -> None:
    done_and_undone(laid(tmp_path), (sign, option))


def _provision() -> str:
    return provisioning(of_steps(step("one", InstallFile(path="/etc/x.conf", text="x\n")), stages=("install",)), "")


@pytest.mark.parametrize("kind", ["script", "provision"])
def test_a_script_is_not_sourced(kind: str, tmp_path: Path) -> None:
    """The shell that would read it goes on as it was, and hears why."""
    place = tmp_path / "s.sh"
    place.write_text(script(tuning()) if kind == "script" else _provision())
    calling = f'before=$-; . {place} --dry-run; echo "rc $? [$before] [$-] ${{STATE-unset}}"'
    for shell in (("bash", "-c", calling), ("bash", "-mc", calling), ("dash", "-c", calling)):
        ran = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
        words = ran.stdout.split()
        assert words[1] in ("2", "3") and words[2] == words[3] and words[4] == "unset", (shell, ran.stdout, ran.stderr)
        assert "bash" in ran.stderr


@needs_root
@pytest.mark.parametrize("kind", ["script", "provision"])
def test_no_pipe_ends_in_a_builtin_that_sets_a_variable(kind: str) -> None:
    """``| read`` and its kin set variables of this shell only under lastpipe, which job control switches off."""
    text = script(tuning()) if kind == "script" else _provision()
    assert "lastpipe" in text and "shopt -s lastpipe" not in text
    assert not [line for line in text.splitlines() if any(f"| {word}" in line for word in ("read", "mapfile", "while"))]


@needs_root
def test_a_value_that_cannot_be_saved_stays(tmp_path: Path) -> None:
    """Its pair is a folder: what it is now cannot be read."""
    root = laid(tmp_path)
    root.path(OTHER).unlink()
    root.path(OTHER).mkdir()
    ran = root.run(script(tuning()))
    assert ran.returncode == 1 and f"{PAIR}: what it is now cannot be read, so it stays" in ran.stderr
    assert root.text(PAIR) == "0\n" and root.text(SWAP) == "10\n"


@needs_root
def test_an_empty_value_stays(tmp_path: Path) -> None:
    root = laid(tmp_path)
    root.put(SWAP, "\n")
    ran = root.run(script(tuning()))
    assert ran.returncode == 1 and root.text(SWAP) == "\n" and "vm.swappiness" not in root.text(FILE)


@needs_root
def test_a_unit_whose_state_systemd_does_not_tell_stays(tmp_path: Path) -> None:
    root = laid(tmp_path)
    root.put("/bin/systemctl", "#!/bin/bash\n[[ $1 == is-enabled ]] && echo disabled; exit 1\n", 0o755)
    ran = root.run(script(tuning()))
    assert ran.returncode == 1 and "systemd does not tell how it is" in ran.stderr
