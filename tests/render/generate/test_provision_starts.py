"""Where the script of the stages goes on: after a start of the host, another run beside it, damaged notes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from provisions import PLAIN, SMOKE, TUNE, calls, of_steps, step, working_root
from script_root import Root, needs_root

from torchtune_sys.model.actions import Needs
from torchtune_sys.model.install import InstallCommand, Packages
from torchtune_sys.render.generate.provision import provisioning


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return working_root(tmp_path / "root")


@needs_root
def test_nothing_is_taken_back_below_another_run(root: Root) -> None:
    text = provisioning(of_steps(*PLAIN.steps[:1], stages=("install", "tune")), SMOKE)
    assert "(--stages install leaves this stage out)" in text
    root.path("/var/lib/torchtune-sys").mkdir(parents=True)
    root.path("/var/lib/torchtune-sys/provision.lock").symlink_to(f"{os.getpid()}  first")
    done = root.run(text, "--undo")
    assert done.returncode == 3 and "is changing this host" in done.stdout


@needs_root
def test_a_start_is_asked_for_once(root: Root) -> None:
    text = provisioning(
        of_steps(*PLAIN.steps[:1], step("driver", Packages(manager="apt", names=("driver",)), reboot=True), PLAIN.steps[1]), SMOKE
    )
    first = root.run(text)
    assert first.returncode == 10 and "reboot this host" in first.stdout
    assert root.run(text).returncode == 10 and root.run(text, "--status").returncode == 10
    assert not root.path("/etc/deep").exists()
    root.put("/proc/sys/kernel/random/boot_id", "second\n")
    assert root.run(text).returncode == 0
    root.put("/proc/sys/kernel/random/boot_id", "third\n")
    assert root.run(text).returncode == 0
    root.path("/tmp/have/gcc").unlink()  # a change before the reboot's step: the host is asked for again, once
    assert root.run(text).returncode == 10


@needs_root
def test_another_driver_asks_for_a_start_of_its_own(root: Root) -> None:
    def script(name: str) -> str:
        driver = step("driver", Packages(manager="apt", names=(name,)), reboot=True)
        return provisioning(of_steps(driver, step("last", InstallCommand(words=("missing",)))), SMOKE)

    assert root.run(script("driver-570")).returncode == 10
    root.put("/proc/sys/kernel/random/boot_id", "second\n")
    assert root.run(script("driver-570")).returncode == 1  # and that is where it stays
    assert root.run(script("driver-580")).returncode == 10


@needs_root
def test_a_fresh_start_before_the_smoke_test(root: Root) -> None:
    text = provisioning(PLAIN, SMOKE)
    assert root.run(text, "--reboot-after", "install").returncode == 10
    root.put("/proc/sys/kernel/random/boot_id", "second\n")
    root.path("/etc/deep/x.conf").unlink()  # what changes on each start must not go round in circles
    assert root.run(text, "--reboot-after", "install").returncode == 0
    assert root.run(text, "--reboot-after", "install").returncode == 0


@needs_root
@pytest.mark.parametrize("content", [b"", b"\xff\xfe garbage \0 9 \0", b"0\0000\0000\0000"])
def test_damaged_notes_end_in_no_lie(root: Root, content: bytes) -> None:
    text = provisioning(PLAIN, SMOKE)
    for name in ("where", "verdict", "options", "child", "changed.install", "asked.driver", "smoke.py"):
        root.put(f"/var/lib/torchtune-sys/provision/{name}", content)
    assert root.run(text, "--status").returncode == 3
    root.put("/tmp/verdict", "1")
    done = root.run(text)
    assert done.returncode == 1 and root.run(text, "--status").returncode == 1


@needs_root
def test_a_place_that_cannot_be_written(root: Root) -> None:
    text = provisioning(PLAIN, SMOKE)
    root.put("/var/lib/torchtune-sys", "a file where a folder should be")
    done = root.run(text)
    assert done.returncode == 3 and "cannot be written: nothing was changed" in done.stderr and calls(root) == []


@needs_root
def test_one_at_a_time(root: Root) -> None:
    text = provisioning(PLAIN, SMOKE)
    root.path("/var/lib/torchtune-sys").mkdir()
    start = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(") ")[2].split()[19]
    root.put(f"/proc/{os.getpid()}/stat", Path(f"/proc/{os.getpid()}/stat").read_text())
    os.symlink(f"{os.getpid()} {start} first", root.path("/var/lib/torchtune-sys/provision.lock"))
    done = root.run(text)
    assert done.returncode == 3 and f"process {os.getpid()}" in done.stdout and calls(root) == []
    root.put("/proc/sys/kernel/random/boot_id", "second\n")  # left by a run of another boot
    assert root.run(text).returncode == 0


@needs_root
def test_the_tune_stage(root: Root) -> None:
    tuned = msgspec.structs.replace(
        TUNE, changes=tuple(msgspec.structs.replace(item, needs=Needs.REBOOT) for item in TUNE.changes)
    )
    text = provisioning(of_steps(stages=("tune", "smoke"), tune=tuned), SMOKE)
    assert root.run(text, "--check").returncode == 1
    assert root.run(text).returncode == 10
    assert "vm.swappiness = 10" in root.text("/etc/sysctl.d/99-torchtune-sys.conf")
    root.put("/proc/sys/kernel/random/boot_id", "second\n")
    assert root.run(text).returncode == 0 and root.run(text, "--check").returncode == 0
    back = root.run(text, "--undo")
    assert back.returncode == 0 and "packages and the environment stay" in back.stdout
    assert not root.path("/etc/sysctl.d/99-torchtune-sys.conf").exists()
    assert root.run(text, "--status").returncode == 3


@needs_root
def test_a_driver_that_was_taken_away_asks_for_another_start(root: Root) -> None:
    text = provisioning(
        of_steps(
            step("driver", Packages(manager="apt", names=("driver",)), reboot=True),
            step("last", InstallCommand(words=("missing",))),
        ),
        SMOKE,
    )
    asked = []
    for boot in range(5):
        root.put("/proc/sys/kernel/random/boot_id", f"{boot}\n")
        asked.append(root.run(text).returncode == 10)
        root.path("/tmp/have/driver").unlink()
    assert asked == [True, True, True, False, False]  # nothing goes round in circles


@needs_root
@pytest.mark.parametrize("words", [("--reboot-after", "smoke"), ("--stages", "smoke", "--reboot-after", "install")])
def test_a_start_that_would_never_come_is_refused(root: Root, words: tuple[str, ...]) -> None:
    done = root.run(provisioning(PLAIN, SMOKE), *words)
    assert done.returncode == 2 and "--reboot-after" in done.stderr.splitlines()[0] and calls(root) == []


@needs_root
def test_other_tools_than_gnu_s_are_told_first(root: Root) -> None:
    root.put("/bin/env", "#!/bin/bash\n[[ $1 != -C ]]\n", 0o755)
    done = root.run(provisioning(PLAIN, SMOKE))
    assert done.returncode == 3 and "coreutils 8.28" in done.stderr.splitlines()[0] and calls(root) == []


@pytest.mark.skipif(shutil.which("dash") is None, reason="needs dash")
def test_another_shell_is_told_first(tmp_path: Path) -> None:
    script = tmp_path / "provision.sh"
    script.write_text(provisioning(PLAIN, SMOKE))
    done = subprocess.run(["dash", script], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "this needs bash 4.3" in done.stderr.splitlines()[0]
