"""What surrounds a run: variables of whoever starts it, streams that are closed, and another user at the places that root writes to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driven import HOSTS, PROGRAM, environment, run

import torchtune_sys
from torchtune_sys.errors import CannotWrite
from torchtune_sys.host.account import account, caller
from torchtune_sys.host.files import write_atomically, write_below, write_in_new_folder
from two_users import SYSTEM_PYTHON, Scene, as_root, needs_root

SWAPPY = str(HOSTS / "swappiness-high.fail.json")


@pytest.mark.parametrize("asked", ["bash_source", "zsh_complete", "x"])
@pytest.mark.parametrize("arguments", [("check", "-q", "--fail-on", "advice"), ("preflight",)])
def test_a_variable_gets_no_script_in_the_place_of_a_verdict(asked: str, arguments: tuple[str, ...]) -> None:
    words = {"COMP_WORDS": "torchtune-sys ch", "COMP_CWORD": "1"}
    plain, steered = (run(*arguments, "--from", SWAPPY, env=more) for more in ({}, {"_TORCHTUNE_SYS_COMPLETE": asked, **words}))
    assert (steered.returncode, len(steered.stdout)) == (plain.returncode, len(plain.stdout))
    assert "complet" not in steered.stdout


@pytest.mark.parametrize("line", [">/dev/full", "COMP"])
def test_an_error_without_arguments_is_told_as_any_other(line: str) -> None:
    """It was a traceback, and Python's own status 1."""
    asked = {"_TORCHTUNE_SYS_COMPLETE": "bash_complete", "COMP_WORDS": "torchtune-sys ch", "COMP_CWORD": "x"}
    argv = ["/bin/sh", "-c", " ".join(PROGRAM) + (line if line[0] == ">" else "")]
    found = subprocess.run(argv, env=environment(asked if line == "COMP" else {}), capture_output=True, text=True, timeout=60)
    assert found.returncode == 4 and "Traceback" not in found.stderr and found.stderr.startswith("torchtune-sys: "), found
    assert line == "COMP" or "standard output: No space left" in found.stderr


MANY = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
for _ in range(1100):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
WORKER = "import sys; from torchtune_sys.host.peers.rank_worker import RankWorker as R; w = R((sys.executable, '-c', 'print(chr(123) + chr(125))'), {}, 2, None); print(w.answer(20)); w.end()"


@pytest.mark.parametrize("asked", ["check -q -o OUT", "diagnose LOG --share OUT", "worker"])
def test_open_files_that_a_caller_left_are_in_nobody_s_way(asked: str, tmp_path: Path) -> None:
    """select(2) knows no number above 1023: it was an internal error, with each file that is written, and on each rank."""
    (tmp_path / "log").write_text("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n")
    words = asked.replace("OUT", str(tmp_path / "out")).replace("LOG", str(tmp_path / "log")).split()
    argv = ["-c", WORKER] if asked == "worker" else ["-m", "torchtune_sys", *words]
    found = subprocess.run(
        [sys.executable, "-c", MANY, *argv], env=environment({}), cwd="/", capture_output=True, text=True, timeout=120
    )
    assert found.returncode in (0, 1) and "out of range" not in found.stdout + found.stderr, found
    assert found.stdout == "{}\n" if asked == "worker" else (tmp_path / "out").read_text()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_number_of_a_closed_stream(closed: str, tmp_path: Path) -> None:
    code = (
        "from torchtune_sys.host.isolation import isolate; isolate(); import os, sys;"
        f"number = os.open({str(tmp_path / 'journal')!r}, os.O_WRONLY | os.O_CREAT); os.write(number, b'%d' % number); os.system('echo out; echo err >&2')"
    )
    subprocess.run(
        ["/bin/sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code], env=environment({}), capture_output=True, check=True
    )
    assert int((tmp_path / "journal").read_text()) > 2


def test_a_closed_standard_output_is_told_after_root_started_anew(tmp_path: Path) -> None:
    """What is filled in is no stream to write to."""
    line = f"{' '.join(PROGRAM)} check -q --from {SWAPPY} >&-"
    found = subprocess.run(
        ["/bin/sh", "-c", line], env=environment({"PYTHONPATH": str(tmp_path)}), capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 4 and "standard output is closed" in found.stderr


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "TORCHTUNE_SYS_SESSION_", "TORCHTUNE_SYS_SESSION_TORCHTUNE_SYS_SESSION_"])
def test_variables_that_stand_for_the_session_s_run_nothing_as_root(scene: Scene, before: str) -> None:
    """``TORCHTUNE_SYS_SESSION_PATH`` is what root's own new start leaves behind; whoever may set a variable may set it, too."""
    alice = scene.alice
    for name in ("nvidia-smi", "systemctl", "rpm", "journalctl", "dmesg", "python3", "sh", "git"):
        alice.write(alice.home / "bin" / name, scene.shell_payload(), 0o755)
    for name in ("sitecustomize", "usercustomize", "random", "click"):
        alice.write(alice.home / "modules" / f"{name}.py", scene.payload())
    home, programs, modules = str(alice.home), str(alice.home / "bin"), str(alice.home / "modules")
    steering = {"PATH": f"{programs}:/usr/bin:/bin", "LD_LIBRARY_PATH": home, "HOME": home, "TMPDIR": home, "SHELL": f"{programs}/sh", "PAGER": f"{programs}/sh"}  # fmt: skip
    if before:  # Python obeys these themselves before our first line
        steering |= {"PYTHONPATH": modules, "PYTHONHOME": home, "LD_PRELOAD": f"{home}/x.so", "PYTHONBREAKPOINT": "random.x"}
    for command in (("check", "-q"), ("check", "-q", "--live"), ("preflight",), ("plan",)):
        as_root(*command, **{before + name: value for name, value in steering.items()})
    assert scene.who_ran() <= {alice.uid}


RACE = r"""
import itertools, os, sys
place, victim, own = sys.argv[1:]
os.chdir(place)
names = ["o", ".o.torchtune-sys", "l/bad_nodes.txt", "s/x", "d/99.conf"]
def tried(call, *words):
    try: call(*words)
    except OSError: pass
for turn in itertools.count():
    for name in names:
        tried(os.makedirs, os.path.dirname(name) or ".", 0o777)
        kind = turn % 5
        if kind == 0: tried(os.symlink, victim, name)
        elif kind == 1: tried(os.symlink, own, name)
        elif kind == 2: tried(os.mkfifo, name, 0o666)
        elif kind == 3: tried(os.link, own, name)
        else: tried(os.symlink, place + "/l", name)
        tried(os.rename, name, name + "-"); tried(os.unlink, name + "-"); tried(os.unlink, name)
    for folder in "lsd":
        tried(os.rename, folder, folder + "2"); tried(os.symlink, os.path.dirname(victim), folder)
        tried(os.unlink, folder); tried(os.rename, folder + "2", folder)
"""
TURNS_S = 4


@needs_root
def test_another_user_who_changes_the_place_all_the_time_leads_root_nowhere(scene: Scene) -> None:
    kept = scene.folder / "kept"
    kept.mkdir()
    victim = kept / "victim"
    victim.write_text("precious")
    own = scene.alice.write(scene.alice.home / "own", "hers", 0o666)
    place = scene.folder / "place"
    place.mkdir()
    place.chmod(0o1777)
    words = [SYSTEM_PYTHON, "-c", RACE, str(place), str(victim), str(own)]
    racers = [subprocess.Popen(words, user=scene.alice.uid, group=scene.alice.gid, extra_groups=[]) for _ in range(2)]
    writes = (
        lambda: write_atomically(f"{place}/o", "root's", by_root=0o600),
        lambda: write_atomically(f"{place}/l/bad_nodes.txt", "root's"),
        lambda: write_below(f"{place}/d", {"/99.conf": "# made\n"}, "# made"),
        lambda: write_in_new_folder(f"{place}/s/x", "root's"),
    )
    try:
        until, done = time.monotonic() + TURNS_S, 0
        while time.monotonic() < until:
            for write in writes:
                try:
                    write()
                    done += 1
                except CannotWrite:
                    continue
                finally:
                    assert (victim.read_text(), own.read_text(), os.listdir(kept)) == ("precious", "hers", ["victim"])
        assert done, "no turn of root's came between hers"
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()


READ = "from torchtune_sys.host.live import LiveHost; host = LiveHost(); print([host.text(path) for path in {!r}])"


@needs_root
@pytest.mark.parametrize("by", [("SUDO_UID", "SUDO_USER"), ("DOAS_USER",), ("PKEXEC_UID",), ()])
def test_a_variable_of_who_called_sudo_names_no_file_of_root_s(scene: Scene, by: tuple[str, ...]) -> None:
    """NCCL_CONF_FILE=/etc/shadow, kept by ``sudo -E``: the recording held every line of it."""
    safe = scene.folder / "nccl.conf"
    safe.write_text("NCCL_DEBUG=only-root-may-read-this\n")
    safe.chmod(0o600)
    who = {name: str(scene.alice.uid) if name.endswith("UID") else scene.alice.name for name in by}
    found = as_root("record", NCCL_CONF_FILE=str(safe), **who).stdout
    assert str(safe) in found and ("only-root" in found) == (not by), "what root names itself is read"
    safe.chmod(0o644)
    assert "only-root" in as_root("record", NCCL_CONF_FILE=str(safe), **who).stdout


@needs_root
def test_who_called_sudo_names_no_file_of_a_third_user_s(scene: Scene) -> None:
    """Nor one that its owner alone may read."""
    safe = scene.bob.write(scene.folder / "bobs.conf", "NCCL_DEBUG=only-bob-may-read-this\n")
    safe.chmod(0o600)
    who = {"SUDO_UID": str(scene.alice.uid), "SUDO_USER": scene.alice.name}
    found = as_root("record", NCCL_CONF_FILE=str(safe), **who).stdout
    assert str(safe) in found and "only-bob" not in found
    safe.chmod(0o644)
    assert "only-bob" in as_root("record", NCCL_CONF_FILE=str(safe), **who).stdout


@needs_root
@pytest.mark.parametrize("whose", ["hers", "root's"])
def test_a_path_in_a_file_of_another_user_s_leads_root_to_nothing_of_its_own(scene: Scene, whose: str) -> None:
    """NCCL_TOPO_FILE in her ~/.nccl.conf: NCCL's topology was read from there, and recorded."""
    safe = scene.folder / "topology.xml"
    safe.write_text("only-root-may-read-this")
    safe.chmod(0o600)
    named = scene.folder / "nccl.conf"
    named.write_text(f"NCCL_TOPO_FILE={safe}\n")
    if whose == "hers":
        named = scene.alice.write(scene.alice.home / ".nccl.conf", named.read_text())
    done = subprocess.run([sys.executable, "-c", READ.format([str(named), str(safe)])], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0 and ("only-root" in done.stdout) == (whose == "root's"), done
    safe.chmod(0o644)
    done = subprocess.run([sys.executable, "-c", READ.format([str(named), str(safe)])], capture_output=True, text=True, cwd="/")
    assert "only-root" in done.stdout, done


@needs_root
def test_who_called_is_told_by_doas_and_pkexec_too(scene: Scene) -> None:
    alice = account(scene.alice.uid, scene.alice.gid)
    assert caller({"DOAS_USER": scene.alice.name}) == caller({"PKEXEC_UID": str(scene.alice.uid)}) == alice
    for env in ({}, {"DOAS_USER": "root"}, {"DOAS_USER": "no\x00ne"}, {"PKEXEC_UID": "0"}, {"PKEXEC_UID": "9" * 4000}):
        assert caller(env) is None
    assert caller({"SUDO_USER": scene.bob.name, "DOAS_USER": scene.alice.name}) == alice, "sudo says more than half"
    assert caller({"PKEXEC_UID": str(scene.bob.uid), "DOAS_USER": scene.alice.name}) is None, "one of them is made up"


@needs_root
@pytest.mark.parametrize("before", ["", "TORCHTUNE_SYS_SESSION_"])
@pytest.mark.parametrize("forged", ["nobody at all", "root", "bob"])
def test_who_called_cannot_be_made_up(scene: Scene, forged: str, before: str) -> None:
    """doas with keepenv hands on what sudo would have set, ``sudo -E`` what doas would; the program's own new start hands on what it set aside."""
    safe = scene.folder / "nccl.conf"
    safe.write_text("NCCL_DEBUG=only-root-may-read-this\n")
    safe.chmod(0o600)
    os.chown(safe, scene.bob.uid if forged == "bob" else 0, 0)
    name, uid = (scene.bob.name, scene.bob.uid) if forged == "bob" else (forged, 0)
    for own in ({"DOAS_USER": scene.alice.name}, {"SUDO_USER": scene.alice.name, "SUDO_UID": str(scene.alice.uid)}):
        made_up = (
            {"SUDO_USER": name, "SUDO_UID": str(uid)}
            if "DOAS_USER" in own or before
            else {"DOAS_USER": name, "PKEXEC_UID": str(uid)}
        )
        found = as_root(
            "record", NCCL_CONF_FILE=str(safe), **{before + key: value for key, value in made_up.items()}, **own
        ).stdout
        assert str(safe) in found and "only-root" not in found


@needs_root
def test_what_root_makes_is_for_nobody_else_to_write_though_its_mask_lets_all(tmp_path: Path) -> None:
    """su(1), doas(1) and some daemons keep the mask of whoever starts them, and uv(1) leaves it to Python to compile what it installs."""
    sources = tmp_path / "lib"
    shutil.copytree(Path(torchtune_sys.__file__).parent, sources / "torchtune_sys", ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path / "out"
    out.mkdir()
    commands = (
        f"check -q --from {SWAPPY} -o {out}/report",
        f"check -q --from {SWAPPY} --format prometheus -o {out}/metrics",
        f"record -o {out}/host.json",
        f"snapshot --compact -o {out}/facts.json",
        f"generate script --from {SWAPPY} -o {out}/script.sh",
        f"plan --from {SWAPPY} --output-dir {out}/made",
        f"preflight --alone --from {SWAPPY} --drain-state {out}/drained --facts {out}/facts --lists {out}/lists",
        f"fleet --dir {HOSTS} --save {out}/saved",
    )
    for command in commands:
        line = f"umask 0; exec {sys.executable} -m torchtune_sys {command}"
        subprocess.run(
            ["/bin/sh", "-c", line], env=environment({"PYTHONPATH": str(sources)}), cwd="/", capture_output=True, timeout=120
        )
    assert len(list(out.iterdir())) > 5
    found = [place for place in tmp_path.rglob("*") if place.lstat().st_mode & 0o022 and not place.is_symlink()]
    assert found == []
