"""What is told to a daemon once its file changed: only where that daemon runs, to its end, and again when the file is taken back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small
from simulate import Seen, recording

from torchtune_sys.model.plan import FileLine, PlannedFile
from torchtune_sys.remediation.apply import journal, session, undo, units
from torchtune_sys.rules import by_id

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of root are written")
TOOLS = {"/usr/bin/udevadm": "", "/usr/bin/systemctl": ""}
RUNNING = {"/run/udev/control": "", "/run/systemd/system/x": ""}


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize(
    ("host", "command"),
    [
        ("nvme-scheduler-not-none.fail", ("udevadm", "control", "--reload")),
        ("logind-removes-ipc.fail", ("systemctl", "daemon-reload")),
    ],
)
def test_only_a_daemon_that_runs_is_told(host: str, command: tuple[str, ...], runs: bool) -> None:
    """A chroot, a container and an image that is being built have the tools and no daemon: there the call would fail, or hang."""
    plan = Seen(recording(host, files={**TOOLS, **(RUNNING if runs else {})}), [by_id()[host.partition(".")[0]]]).plan
    assert [file.refresh for file in plan.files] == [(command,) if runs else ()]


def run(folder: Path, command: str, stop: session.Stop = lambda: False) -> session.ApplyRun:
    """One file of ours in ``folder``, after which the command runs."""
    small.set_up(folder)
    return once_more(folder, command, stop)


def once_more(folder: Path, command: str, stop: session.Stop = lambda: False) -> session.ApplyRun:
    path = f"{folder}/kept.conf"
    file = PlannedFile(path=path, before=small.OLD["kept.conf"], content="new\n", refresh=(("sh", "-c", command),))
    change = small.change("one", FileLine(path=path, key="one", text="new"))
    plan = small.Plan(host="", origin="live", changes=(change,), files=(file,), refused=(), by_hand=())
    return session.run(plan, lambda failed: (file,), stop, small.MOMENT, small.state(folder))


def test_told_again_once_the_file_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    done = run(folder, f"cat {folder}/kept.conf >> {tmp_path}/heard")
    assert done.rolled_back == "" and small.take_back(folder).failed == {}
    assert (tmp_path / "heard").read_text() == "new\nby hand\n"


def test_a_daemon_that_does_not_take_it_leaves_nothing_changed(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    done = run(folder, "echo is there a udevd >&2; exit 1")
    assert "is there a udevd" in done.rolled_back and small.seen(folder) == small.OLD
    assert "it is restored, but reloading it failed" in done.kept[f"{folder}/kept.conf"]
    assert session.unfinished(small.state(folder)) is None  # the next run is not refused
    assert once_more(folder, "true").rolled_back == ""


def test_a_daemon_that_went_since_does_not_keep_undo_from_its_end(tmp_path: Path) -> None:
    folder, good = tmp_path / "host", tmp_path / "good"
    good.touch()
    run(folder, f"test -e {good}")
    good.unlink()
    found = journal.load(small.state(folder), 1)
    assert "reloading it failed" in str(undo.undo(found, same_boot=True).kept) and small.seen(folder) == small.OLD
    good.touch()
    assert undo.undo(journal.load(small.state(folder), 1), same_boot=True).kept == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_while_it_is_told(number: signal.Signals, tmp_path: Path) -> None:
    """The whole process group gets it, as from a terminal: the daemon's tool runs to its end, then everything is taken back."""
    heard = tmp_path / "heard"
    argv = [sys.executable, __file__, str(tmp_path / "host"), f"echo begun >> {heard}; sleep 1; echo ended >> {heard}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)
    deadline = time.monotonic() + 30
    while not heard.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(child.pid, number)
    said, _ = child.communicate(timeout=30)
    assert json.loads(said) == {"rolled_back": "interrupted", "kept": {}}
    assert heard.read_text() == "begun\nended\n" * 2 and small.seen(tmp_path / "host") == small.OLD


if __name__ == "__main__":
    from torchtune_sys.cli.apply_run import _stopping

    with _stopping() as asked:
        ended = run(Path(sys.argv[1]), sys.argv[2], asked)
    print(json.dumps({"rolled_back": ended.rolled_back, "kept": ended.kept}))


def test_what_makes_the_boot_entries_anew_may_take_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("update-grub", "udevadm"):
        (tmp_path / name).write_text("#!/bin/sh\nsleep 2\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(units, "TIMEOUT_S", 0.5)
    units.command(("update-grub",))
    with pytest.raises(units.Failed, match=r"no answer within 0\.5 s"):
        units.command(("udevadm",))
