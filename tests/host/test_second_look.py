"""Ways in that a second look found: each first gets in by a plain start or the plain call, then fails against ours."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchtune_sys.host import slots
from torchtune_sys.host.account import account
from torchtune_sys.host.children.child_environment import for_root
from torchtune_sys.host.children.examined import runner
from torchtune_sys.host.children.rank_processes import RankProcesses
from torchtune_sys.host.isolation import _is_foreign
from torchtune_sys.model.values import Missing, Why
from two_users import PROGRAM, SYSTEM_PYTHON, Scene, as_root, needs_root, system_minor

REPO = Path(__file__).resolve().parent.parent.parent


def environment_of_root(scene: Scene) -> tuple[Path, Path]:
    """A virtual environment that is root's, and its directory of packages, with a torch."""
    venv = scene.folder / "roots"
    packages = venv / "lib" / f"python{system_minor()}" / "site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text("")
    (venv / "bin").mkdir()
    (venv / "bin" / "python3").symlink_to(SYSTEM_PYTHON)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return venv, packages


def package_of_theirs(scene: Scene, packages: Path) -> None:
    shutil.rmtree(packages / "torch")
    scene.alice.write(packages / "torch" / "__init__.py", scene.payload())


def linked_package(scene: Scene, packages: Path) -> None:
    shutil.rmtree(packages / "torch")
    scene.alice.write(scene.alice.home / "torch" / "__init__.py", scene.payload())
    (packages / "torch").symlink_to(scene.alice.home / "torch")


def editable_installation(scene: Scene, packages: Path) -> None:
    (packages / "torch" / "__init__.py").write_text("import numpy\n")
    scene.alice.write(scene.alice.home / "project" / "numpy.py", scene.payload())
    (packages / "__editable__.project.pth").write_text(f"{scene.alice.home}/project\n")


@needs_root
@pytest.mark.parametrize("attack", [package_of_theirs, linked_package, editable_installation], ids=lambda each: each.__name__)
def test_one_package_of_another_user_s_in_an_environment_of_root_s(scene: Scene, attack) -> None:  # type: ignore[no-untyped-def]
    venv, packages = environment_of_root(scene)
    attack(scene, packages)
    subprocess.run([venv / "bin" / "python3", "-B", "-c", "import torch"], capture_output=True, timeout=60)
    assert scene.who_ran() == {0}
    as_root("check", "-q", "--live", "--python", str(venv))
    assert scene.who_ran() == {scene.alice.uid}


@needs_root
def test_a_directory_that_anybody_could_make_is_not_one_of_packages(scene: Scene) -> None:
    venv, packages = environment_of_root(scene)
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert runner(str(venv / "bin" / "python3")) is None
    (packages / "gone.pth").write_text(f"import sys\n# a comment\n{shared}/gone\n")
    found = runner(str(venv / "bin" / "python3"))
    assert isinstance(found, Missing) and found.why is Why.DENIED and "shared" in found.detail


@needs_root
def test_a_group_named_as_its_owner_may_be_another_user_s_first(scene: Scene) -> None:
    if shutil.which("usermod") is None:
        pytest.skip("usermod is not installed")
    place = scene.alice.write(scene.alice.home / "bin" / "python3", scene.shell_payload(), 0o755)
    place.parent.chmod(0o775)
    found = runner(str(place))
    assert not isinstance(found, Missing) and found is not None and found.uid == scene.alice.uid
    subprocess.run(["usermod", "--gid", str(scene.alice.gid), scene.bob.name], check=True, capture_output=True)
    try:
        written = subprocess.run(
            ["/bin/sh", "-c", f"echo : > {place.parent}/theirs"],
            user=scene.bob.uid, group=scene.alice.gid, extra_groups=[], timeout=60,
        )  # fmt: skip
        assert written.returncode == 0
        refused = runner(str(place))
        assert isinstance(refused, Missing) and refused.why is Why.DENIED
    finally:
        subprocess.run(["usermod", "--gid", str(scene.bob.gid), scene.bob.name], check=True, capture_output=True)


@needs_root
@pytest.mark.parametrize("value", [":", "/opt/nothing:", "lib", "./lib", "/opt/a::/opt/b", "SHARED"])
def test_libraries_are_not_taken_from_the_working_directory(scene: Scene, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader's own words say where it looks: as root in another user's directory, before and after the new start."""
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    value = value.replace("SHARED", str(shared))
    monkeypatch.chdir(scene.alice.home)
    assert _is_foreign("LD_LIBRARY_PATH", value) and _is_foreign("PYTHONPATH", value)
    told = subprocess.run(
        [*PROGRAM, "history"],
        env={**os.environ, "LD_LIBRARY_PATH": value, "LD_DEBUG": "libs"},
        cwd=scene.alice.home, capture_output=True, text=True, timeout=120,
    ).stderr  # fmt: skip
    starts = told.split("transferring control")
    if len(starts) < 3:
        pytest.skip("this loader does not tell where it looks")
    assert "(LD_LIBRARY_PATH)" in starts[0], "the first start obeys"
    assert "(LD_LIBRARY_PATH)" not in starts[-1]
    assert not _is_foreign("LD_LIBRARY_PATH", "/usr/lib:/opt") and not _is_foreign("LD_LIBRARY_PATH", "")


@needs_root
def test_variables_that_steer_and_name_no_place_are_left(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.alice.home)
    for name, value in (("PYTHONUNBUFFERED", "1"), ("MALLOC_ARENA_MAX", "2"), ("TMPDIR", "/tmp"), ("PYTHONHASHSEED", "0")):
        assert not _is_foreign(name, value), name
    assert _is_foreign("TMPDIR", "mine") and _is_foreign("PYTHONPYCACHEPREFIX", "cache")


@needs_root
def test_compiled_modules_are_not_taken_from_a_shared_directory(scene: Scene) -> None:
    """In /tmp nobody changes another's file, but everybody lays one where none is."""
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    made = (
        "import importlib.util, json, marshal, os, sys\n"
        "place, info = json.__file__, os.stat(json.__file__)\n"
        "cache = importlib.util.cache_from_source(place)\n"
        "os.makedirs(os.path.dirname(cache), exist_ok=True)\n"
        "code = compile(sys.argv[1] + chr(10) + open(place).read(), place, 'exec')\n"
        "head = importlib.util.MAGIC_NUMBER + bytes(4) + int(info.st_mtime).to_bytes(4, 'little') + info.st_size.to_bytes(4, 'little')\n"
        "open(cache, 'wb').write(head + marshal.dumps(code))\n"
    )
    env = {"PYTHONPYCACHEPREFIX": str(shared), "PYTHONDONTWRITEBYTECODE": "1"}
    done = scene.alice.run([SYSTEM_PYTHON, "-c", made, scene.payload()], env=env)
    assert done.returncode == 0, done.stderr
    subprocess.run([SYSTEM_PYTHON, "-c", "import json"], env={**os.environ, **env}, timeout=60)
    assert scene.who_ran() == {0}
    as_root("check", "-q", "--live", "--python", SYSTEM_PYTHON, **env)
    assert scene.who_ran() == set()


@needs_root
def test_a_shared_directory_is_for_temporary_files_only(scene: Scene) -> None:
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    env = {name: str(shared) for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NCCL_NET_PLUGIN")}
    assert {name for name in for_root(env) if name in env} == {"TMPDIR"}
    relative = os.path.relpath(scene.alice.home, "/")
    assert "NCCL_CONF_FILE" not in for_root({"NCCL_CONF_FILE": f"{relative}/nccl.conf"}), "children start in /"
    assert "NCCL_CONF_FILE" not in for_root({"NCCL_CONF_FILE": f"~{scene.alice.name}/nccl.conf"})


KEYCTL = """
import ctypes, os
libc, number = ctypes.CDLL(None, use_errno=True), {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280}[os.uname().machine]
def keyctl(*words):
    return libc.syscall(number, *words)
"""
READ_KEY = (
    KEYCTL
    + """
found = ctypes.create_string_buffer(64)
size = keyctl(11, keyctl(10, -3, b"user", b"ticket", 0), found, 64)
print("read", found.value[:max(size, 0)].decode())
"""
)
WITH_KEY = (
    KEYCTL
    + """
import subprocess, sys
from torchtune_sys.host.children import process
from torchtune_sys.host.account import account
alice = account(int(sys.argv[1]), int(sys.argv[2]))
if keyctl(1, None) < 0:
    sys.exit(77)
if libc.syscall({"x86_64": 248, "aarch64": 217, "ppc64le": 269, "s390x": 278}[os.uname().machine], b"user", b"ticket", b"of-root", 7, -3) < 0:
    sys.exit(77)
argv = (sys.argv[3], "-c", sys.argv[4])
print("plain:", subprocess.run(argv, user=alice.uid, group=alice.gid, extra_groups=[], capture_output=True, text=True, cwd="/").stdout)
print("ours:", process.run(argv, timeout_s=60, user=alice).stdout)
print("kept:", subprocess.run(argv, capture_output=True, text=True).stdout)
"""
)


@needs_root
def test_root_s_keys_are_not_handed_on(scene: Scene) -> None:
    """Who possesses a session keyring reads its keys, and children of another user inherit it."""
    if os.uname().machine not in ("x86_64", "aarch64", "ppc64le", "s390x"):
        pytest.skip("the test does not know this machine's numbers of system calls")
    argv = [sys.executable, "-c", WITH_KEY, str(scene.alice.uid), str(scene.alice.gid), SYSTEM_PYTHON, READ_KEY]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd="/")
    if done.returncode == 77:
        pytest.skip("keyctl(2) is not allowed here")
    answers = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    if answers.get("plain") != "read of-root":
        pytest.skip(f"a key of root's is not to be read by possession here: {done.stdout} {done.stderr}")
    assert answers["ours"] == "read "
    assert answers["kept"] == "read of-root", "our own keyring stays"


@needs_root
def test_a_process_that_is_not_the_ranks_is_not_killed(scene: Scene) -> None:
    """Whoever connects and ends leaves a process number that somebody else's process may get."""
    alice = account(scene.alice.uid, scene.alice.gid)
    sleeper = "import time; time.sleep(600)"
    theirs = subprocess.Popen([SYSTEM_PYTHON, "-c", sleeper], user=scene.bob.uid, group=scene.bob.gid, extra_groups=[])
    hers = subprocess.Popen([SYSTEM_PYTHON, "-c", sleeper], user=alice.uid, group=alice.gid, extra_groups=[])
    ends = [socket.socketpair() for _ in range(2)]
    try:
        with RankProcesses(("/bin/sleep", "600"), {}, "/", "TEST_SOCKET", user=alice) as gang:
            assert gang.failure is None
            for (end, _), victim in zip(ends, (theirs, hers), strict=True):
                gang._pids[end] = victim.pid
                gang._stacks[victim.pid] = bytearray()
            gang.stacks([theirs.pid], patience_s=0.2)
        assert hers.wait(30) == -9
        time.sleep(0.3)
        assert theirs.poll() is None
    finally:
        for child in (theirs, hers):
            child.kill()
            child.wait()
        for pair in ends:
            for end in pair:
                end.close()


RUBBISH = """
import os, socket
name = os.environ.get("TORCHTUNE_SYS_SMOKE_SOCKET")
if name:
    said = [b'{"event":"hello","role":"rank","rank":0}', b'{"a":' * 100000, b'{"event":"hello","role":"rank","rank":"x"}',
        b'{"event":"begin","deadline_s":"soon"}', b'{"event":"measure","value":{}}', b'{"event":"end","verdict":"splendid"}',
        b'{"event":"about","stages":7}', b'{"event":"exited","pid":[],"status":1e999}', b'[1]', b'\\xff\\x00']
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\\0" + name)
        s.sendall(b"\\n".join(said) + b"\\n")
    os._exit(3)
"""


@needs_root
def test_what_another_user_s_ranks_say_does_not_stop_us(scene: Scene) -> None:
    venv = scene.alice.venv()
    scene.alice.write(scene.alice.packages(venv) / "rubbish.pth", f"import os; exec({RUBBISH!r})\n")
    done = as_root("smoke", "--quick", "--device", "cpu", "--python", str(venv), timeout=300)
    assert done.returncode in (1, 3) and "internal error" not in done.stderr, done.stderr


@needs_root
@pytest.mark.parametrize("trap", ["link", "fifo", "escape"])
def test_what_lies_in_a_shared_slot_is_not_read_out(scene: Scene, trap: str) -> None:
    """Slots of the drain limit lie where all nodes write, and perhaps users."""
    secret = scene.folder / "secret"
    secret.write_text("root:$6$hash\n")
    secret.chmod(0o600)
    folder = scene.alice.home / "drain"
    folder.mkdir(mode=0o777)
    if trap == "link":
        scene.alice.link(folder / "slot-0", secret)
        with open(folder / "slot-0") as file:
            assert "hash" in file.read(), "a plain look reads it"
    elif trap == "fifo":
        os.mkfifo(folder / "slot-0", 0o666)
    else:
        scene.alice.write(folder / "slot-0", "\x1b]0;owned\x07")
    code = f"from torchtune_sys.host import slots; print(slots.take({str(folder)!r}, 'node1', 1, 3600.0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.stdout == "(False, ('somebody else',))\n", done
    assert slots.take(str(scene.alice.home / "well"), "node-1.example", 1, 3600.0) == (True, ())
    assert slots.take(str(scene.alice.home / "well"), "node-2", 1, 3600.0) == (False, ("node-1.example",))


@needs_root
def test_generated_scripts_start_no_program_of_another_user_s(scene: Scene) -> None:
    recording = REPO / "tests" / "hosts" / "swappiness-high.fail.json"
    script = scene.folder / "tune.sh"
    as_root("generate", "script", "--from", str(recording), "-o", str(script))
    folder = scene.alice.home / "bin"
    for tool in ("cat", "sha256sum", "stat", "readlink", "mkdir", "sysctl"):
        real = shutil.which(tool) or "/bin/false"
        scene.alice.write(folder / tool, scene.shell_payload() + f'exec {real} "$@"\n', 0o755)
    env = {**os.environ, "TORCHTUNE_SYS_STATE": str(scene.folder / "state"), "TORCHTUNE_SYS_LOG": str(scene.folder / "log")}
    for path in (f"{folder}:{env['PATH']}", f"../{folder.name}:{env['PATH']}"):
        subprocess.run(["/bin/sh", "-c", "cat /dev/null"], cwd=folder, env={**env, "PATH": path}, timeout=60)
        assert scene.who_ran() == {0}, "a plain script starts it"
        done = subprocess.run(
            ["bash", str(script), "--dry-run"],
            cwd=folder, env={**env, "PATH": path}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert "nothing was changed" in done.stdout, done
        assert scene.who_ran() == set()


def checks_of_the_site(folder: Path, program: str) -> list[str]:
    place = folder / "checks"
    place.mkdir()
    place.chmod(0o755)
    (place / "a").write_text(program)
    (place / "a").chmod(0o755)
    return ["preflight", "--site-checks", str(place)]


TOKEN = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"[:34]


@needs_root
@pytest.mark.parametrize("form", ["text", "json", "prometheus", "reason"])
def test_a_secret_that_a_site_s_program_prints_goes_no_further(scene: Scene, form: str) -> None:
    """All users read the reason why a node is drained (scontrol show node)."""
    words = checks_of_the_site(scene.folder, f"#!/bin/sh\necho 'cannot reach the hub with token {TOKEN}'\nexit 2\n")
    done = as_root(*words, "--format", form)
    assert TOKEN not in done.stdout + done.stderr
    assert form == "prometheus" or "cannot reach the hub" in done.stdout.replace("\n", " ")


@needs_root
def test_a_site_s_program_that_prints_nested_braces_is_unknown(scene: Scene) -> None:
    words = checks_of_the_site(scene.folder, f"#!{SYSTEM_PYTHON}\nprint('{{\"a\":' * 100000)\n")
    done = as_root(*words, "--format", "json")
    assert done.returncode in (1, 3) and "internal error" not in done.stderr, done.stderr
    assert "printed no valid JSON" in json.dumps(json.loads(done.stdout))


HOSTILE_TOML = {
    "nested": "a=" + "[" * 30000 + "]" * 30000,
    "inline": "a=" + "{a=" * 12000 + "1" + "}" * 12000,
    "dots": ".".join("a" * 32000) + "=1",
    "large": "# " + "x" * 100_000,
    "tables": "".join(f"[{'.'.join('a' * depth)}]\n" for depth in range(1, 250)),
}


@pytest.mark.parametrize("shape", HOSTILE_TOML)
@pytest.mark.parametrize("words", [("check", "-q", "--config"), ("preflight", "--policy")], ids=lambda words: words[0])
def test_a_configuration_takes_no_time_without_end(words: tuple[str, ...], shape: str, tmp_path: Path) -> None:
    place = tmp_path / "hostile.toml"
    place.write_text(HOSTILE_TOML[shape] + "\n")
    done = subprocess.run([*PROGRAM, *words, str(place)], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 2 and "hostile.toml" in done.stderr and "internal error" not in done.stderr, done.stderr


@needs_root
@pytest.mark.parametrize("way", ["link", "directory"])
def test_root_reads_nothing_for_a_user_that_they_may_not_read(scene: Scene, way: str) -> None:
    """What root's recording holds is given away; a link in an environment of theirs would put a file of root's into it."""
    safe = scene.folder / "safe"
    safe.mkdir(mode=0o755 if way == "link" else 0o700)
    secret = safe / "version.py"
    secret.write_text("__version__ = '2.9.0'\ncuda = 'only-root-may-read-this'\n")
    secret.chmod(0o600 if way == "link" else 0o644)
    venv = scene.alice.venv()
    packages = scene.alice.packages(venv)
    scene.alice.write(packages / "torch-2.9.0.dist-info" / "METADATA", "Name: torch\nVersion: 2.9.0\n")
    scene.alice.write(packages / "torch" / "__init__.py", "")
    if way == "link":
        scene.alice.link(packages / "torch" / "version.py", secret)
    else:
        shutil.rmtree(packages / "torch")
        scene.alice.link(packages / "torch", safe)
    assert "only-root" in (packages / "torch" / "version.py").read_text()
    assert scene.alice.run(["cat", str(packages / "torch" / "version.py")]).returncode != 0
    for words in (("record",), ("snapshot", "--format", "json"), ("check", "--format", "json")):
        assert "only-root" not in as_root(*words, "--python", str(venv)).stdout, words
    (packages / "torch").unlink() if way == "directory" else (packages / "torch" / "version.py").unlink()
    scene.alice.write(packages / "torch" / "version.py", "__version__ = '2.9.0'\ncuda = 'theirs-to-read'\n")
    assert "theirs-to-read" in as_root("record", "--python", str(venv)).stdout, "what they may read is read"


@pytest.mark.parametrize("words", [("sh",), ("--", "sh")], ids=["plain", "dashes"])
def test_a_program_that_is_launched_is_not_taken_for_a_reader(words: tuple[str, ...]) -> None:
    """One with an option --from was ended after 30 seconds, as a file that takes too long is; it would get its limits, too."""
    argv = [*PROGRAM, "launch", "--local-rank", "0", *words, "-c", "ulimit -d; echo $PPID", "sh", "--from", "x"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd="/") as started:
        told = started.communicate(timeout=60)[0].split()
    usual = subprocess.run(["sh", "-c", "ulimit -d"], capture_output=True, text=True, check=True).stdout.split()
    assert told == [*usual, str(os.getpid())], "it is the process that was started"


@pytest.mark.parametrize("limit", ["data", "cpu"])
def test_who_reads_a_stranger_s_file_has_a_limit_of_the_kernel_s(limit: str) -> None:
    """Below the limits of the readers, should one fail."""
    code = f"""
import os, resource, sys, time
from torchtune_sys.cli import watch
watch._SPARE_CPU_S = -2
def run(_args):
    try:
        if {limit == "cpu"}:
            while True:
                pass
        kept = [bytes(1 << 20) for _ in range(1500)]
        os._exit(7)
    except MemoryError:
        os._exit(3)
sys.exit(watch.watched(["check", "--from", "x", "--timeout", "60" if {limit == "data"} else "2"], run, lambda _seconds: 9))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == (3 if limit == "data" else 128 + 24), done.stderr


def test_a_fifo_in_a_directory_of_facts_is_not_waited_for(tmp_path: Path) -> None:
    """Each held up compare and fleet for 30 seconds, and there may be thousands."""
    (tmp_path / "a.json").write_text(json.dumps({"schema": "torchtune-sys/snapshot/1", "facts": {}}))
    for number in range(20):
        os.mkfifo(tmp_path / f"trap-{number}")
    done = subprocess.run([*PROGRAM, "compare", str(tmp_path)], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 3 and "is no regular file" in " ".join(done.stdout.split()), done
