"""Generated scripts that run again, at once, are cut off, or are undone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from script_plans import FILE, SWAP, change, plan, sysctl
from script_root import Root, needs_root

from torchtune_sys.model.plan import CommandStep, Unit
from torchtune_sys.render.generate.script import script


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


@needs_root
def test_the_first_state_is_kept_whichever_scripts_run(root: Root) -> None:
    root.put(SWAP, "60\n")
    root.put("/proc/sys/vm/b", "1\n")
    root.put("/run/units/u.active", "")
    before = root.state()
    first = script(plan(sysctl(SWAP, "10"), sysctl("/proc/sys/vm/b", "2")))
    second = script(plan(sysctl("/proc/sys/vm/b", "3"), change("u", Unit(unit="u", enabled=True)), sysctl(SWAP, "1")))
    for text in (first, second, first, second):
        assert root.run(text).returncode == 0
    assert (root.text(SWAP), root.text("/proc/sys/vm/b")) == ("1\n", "3\n")
    assert root.run(first, "--undo").returncode == 0
    assert root.state() == before
    assert root.run(second, "--undo").stdout == "nothing was applied here\n"


@needs_root
def test_what_somebody_changed_since_is_left_and_told(root: Root) -> None:
    root.put(SWAP, "60\n")
    root.put(FILE, "# mine\n")
    text = script(plan(sysctl(SWAP, "10")))
    root.run(text)
    root.put(SWAP, "33\n")
    root.put(FILE, root.text(FILE) + "# more\n")
    changed = root.text(FILE)
    back = root.run(text, "--undo")
    assert back.returncode == 1 and back.stderr.count("left as it is") == 2
    assert (root.text(SWAP), root.text(FILE)) == ("33\n", changed)
    assert root.text("/var/lib/torchtune-sys/script/left-99-torchtune-sys.conf") == "# mine\n"
    assert root.run(text).returncode == 0  # and a run after that begins anew
    assert root.run(text, "--undo").returncode == 0
    assert (root.text(SWAP), root.text(FILE)) == ("33\n", changed)


@needs_root
def test_a_command_runs_once_and_its_inverse_takes_it_back(root: Root) -> None:
    text = script(plan(change("c", CommandStep(argv=("ln", "-s", "two words", "/etc/made"), undo=("rm", "/etc/made")))))
    before = root.state()
    assert root.run(text, "--check").returncode == 1
    assert [root.run(text).returncode for _ in range(2)] == [0, 0]
    assert os.readlink(root.path("/etc/made")) == "two words"
    assert root.run(text, "--check").returncode == 0
    assert root.run(text, "--undo").returncode == 0
    assert root.state() == before


@needs_root
def test_a_refresh_that_failed_is_done_again(root: Root) -> None:
    root.put(SWAP, "60\n")
    text = script(plan(sysctl(SWAP, "10"), refresh=(("refresh-it", "a b"), ("refresh-it", "c"))))
    root.put("/bin/refresh-it", '#!/bin/bash\necho "$*" >>/tmp/refreshed\n[[ -e /tmp/good ]]\n', 0o755)
    assert [root.run(text).returncode for _ in range(2)] == [1, 1]
    root.put("/tmp/good", "")
    assert root.run(text, "--check").returncode == 1
    assert root.run(text).returncode == 0
    assert root.text("/tmp/refreshed") == "a b\nc\n" * 3
    assert "everything is" in root.run(text).stdout


SLOW_UNIT = "#!/bin/bash\ncase $1 in is-*) echo disabled ;; *) echo >/tmp/here; read -r -t 5 <>/tmp/pipe; exit 1 ;; esac\n"


@needs_root
def test_two_at_once_and_one_that_is_interrupted(root: Root) -> None:
    root.put("/bin/systemctl", SLOW_UNIT, 0o755)
    os.mkfifo(root.path("/tmp/pipe"))
    root.put(SWAP, "60\n")
    text = script(plan(sysctl(SWAP, "10"), change("u", Unit(unit="u", enabled=True)), change("v", Unit(unit="v", enabled=True))))
    before = root.state()
    root.put("/script", text)
    argv = ["/usr/sbin/chroot", str(root.folder), "/bin/bash", "/script"]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 20
    while not root.path("/tmp/here").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    busy = root.run(text)
    assert busy.returncode == 1 and f"process {child.pid} is changing this host" in busy.stderr
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130 and "interrupted" in said
    assert root.run(text, "--undo").returncode in (0, 1)  # the stand-in cannot be asked to stop the unit
    root.put("/bin/systemctl", SLOW_UNIT.replace("exit 1", "exit 0").replace("5", "0"), 0o755)
    assert root.run(text, "--undo").returncode == 0
    assert root.state() == before


@needs_root
def test_a_lock_that_a_killed_run_left_is_taken_over(root: Root) -> None:
    root.put(SWAP, "60\n")
    root.path("/var/lib/torchtune-sys").mkdir()
    root.path("/var/lib/torchtune-sys/script.lock").symlink_to("999999999 1 ")
    assert root.run(script(plan(sysctl(SWAP, "10")))).returncode == 0
    assert not root.path("/var/lib/torchtune-sys/script.lock").is_symlink()


FASTER = """#!/bin/bash
if [[ $3 == *script.lock ]]; then ln -sfT -- 'the faster one' "$3"; fi
exec /bin/mv.real "$@"
"""


@needs_root
def test_the_lock_of_a_run_that_was_faster_to_take_it_over_stays(root: Root) -> None:
    """The slower one had moved it away: a third run then found the host free."""
    root.put(SWAP, "60\n")
    lock = root.path("/var/lib/torchtune-sys/script.lock")
    lock.parent.mkdir()
    lock.symlink_to("999999999 1 ")
    root.path("/bin/mv").rename(root.path("/bin/mv.real"))
    root.put("/bin/mv", FASTER, 0o755)
    slower = root.run(script(plan(sysctl(SWAP, "10"))))
    assert slower.returncode == 1 and "is another run changing this host?" in slower.stderr
    assert os.readlink(lock) == "the faster one" and root.text(SWAP) == "60\n"


@needs_root
def test_half_a_script_does_nothing(root: Root) -> None:
    root.put(SWAP, "60\n")
    before = root.state()
    text = script(plan(sysctl(SWAP, "10")))
    for part in range(1, 10):
        root.run(text[: len(text) * part // 10])
    assert root.state() == before
