"""What root starts as whom: each attack of another user's first gets in by a plain start, then fails against ours."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtune_sys.host.account import account, caller
from torchtune_sys.host.children import process
from torchtune_sys.host.children.examined import runner
from torchtune_sys.model.values import Missing, Why
from two_users import PROGRAM, SYSTEM_PYTHON, Scene, as_root, needs_root

pytestmark = needs_root


def refused(found: object) -> str:
    assert isinstance(found, Missing) and found.why is Why.DENIED and found.remedy, found
    return found.detail


def plain(argv: list[str], **env: str) -> None:
    """As an unprotected program would start it: as root, in root's environment."""
    subprocess.run(argv, env={**os.environ, **env}, capture_output=True, timeout=60)


def test_a_child_is_wholly_the_other_user_s(scene: Scene) -> None:
    alice = account(scene.alice.uid, scene.alice.gid)
    done = process.run((SYSTEM_PYTHON, "-c", scene.payload()), timeout_s=60, user=alice)
    assert not isinstance(done, Missing) and done.rc == 0, done
    (seen,) = scene.what_ran()
    assert seen["uid"] == alice.uid and seen["groups"] == [alice.gid]
    ids = process.run(("/bin/sh", "-c", "grep -E '^(Uid|Gid|CapEff|CapPrm)' /proc/self/status"), timeout_s=60, user=alice)
    assert not isinstance(ids, Missing)
    assert ids.stdout.split() == [
        "Uid:", *[str(alice.uid)] * 4, "Gid:", *[str(alice.gid)] * 4, "CapPrm:", "0" * 16, "CapEff:", "0" * 16
    ]  # fmt: skip


def test_a_user_that_we_may_not_become_is_told(scene: Scene) -> None:
    code = f"""import os
from torchtune_sys.host.children import process
from torchtune_sys.host.account import account
bob = account({scene.bob.uid}, {scene.bob.gid})
os.setgroups([]); os.setgid({scene.alice.gid}); os.setuid({scene.alice.uid})
print(process.run(("/bin/true",), timeout_s=30, user=bob))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/")
    assert f"may not become user {scene.bob.name}" in done.stdout, done.stderr


Attack = Callable[[Scene], tuple[list[str], dict[str, str]]]
"""Lays something out, and returns the options and the variables with which root runs ``check``."""


def environment_by_option(scene: Scene) -> tuple[list[str], dict[str, str]]:
    venv = scene.alice.venv()
    scene.alice.write(scene.alice.packages(venv) / "x.pth", scene.payload() + "\n")
    return ["--python", str(venv)], {}


def environment_on_path(scene: Scene) -> tuple[list[str], dict[str, str]]:
    environment_by_option(scene)
    venv = scene.alice.home / "venv"
    return [], {"PATH": f"{venv}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(venv)}


def interpreter_of_their_own(scene: Scene) -> tuple[list[str], dict[str, str]]:
    return ["--python", str(scene.alice.write(scene.alice.home / "bin" / "python3", scene.shell_payload(), 0o755))], {}


def link_in_tmp(scene: Scene) -> tuple[list[str], dict[str, str]]:
    own = scene.alice.write(scene.alice.home / "bin" / "python3", scene.shell_payload(), 0o755)
    return ["--python", str(scene.alice.link(scene.marks.parent / "python3", own))], {}


def environment_of_root_with_their_packages(scene: Scene) -> tuple[list[str], dict[str, str]]:
    venv = scene.folder / "roots"
    packages = scene.alice.packages(venv)
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python3").symlink_to(SYSTEM_PYTHON)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    scene.alice.write(packages / "x.pth", scene.payload() + "\n")
    return ["--python", str(venv)], {}


OWNERS = [
    environment_by_option,
    environment_on_path,
    interpreter_of_their_own,
    link_in_tmp,
    environment_of_root_with_their_packages,
]


@pytest.mark.parametrize("attack", OWNERS, ids=lambda attack: attack.__name__)
def test_an_interpreter_that_another_user_can_change_runs_as_that_user(scene: Scene, attack: Attack) -> None:
    options, env = attack(scene)
    python = f"{options[1].removesuffix('/bin/python3')}/bin/python3" if options else f"{scene.alice.home}/venv/bin/python3"
    plain([python if attack is not link_in_tmp else options[1], "-c", "pass"], **env)
    assert scene.who_ran() == {0}
    done = as_root("check", "-q", *options, **env)
    assert scene.who_ran() == {scene.alice.uid}
    assert done.returncode != 4 and "internal error" not in done.stderr, done.stderr


def test_whose_interpreter_it_was_is_in_the_report(scene: Scene) -> None:
    options, _ = environment_by_option(scene)
    assert f"judged as user {scene.alice.name}" in as_root("check", *options).stdout.replace("\n        ", " ")
    report = json.loads(as_root("check", "--format", "json", *options).stdout)
    assert report["host"]["python"]["judged_as"] == scene.alice.name
    assert (
        json.loads(as_root("snapshot", "--format", "json", *options).stdout)["facts"]["python"]["judged_as"] == scene.alice.name
    )
    assert scene.alice.name not in as_root("record", *options).stdout


def home_of_theirs(scene: Scene) -> dict[str, str]:
    site = scene.alice.home / ".local" / "lib" / Path(scene.alice.packages(Path("/"))).relative_to("/lib")
    scene.alice.write(site / "usercustomize.py", scene.payload())
    return {"HOME": str(scene.alice.home)}


def site_on_pythonpath(scene: Scene) -> dict[str, str]:
    scene.alice.write(
        scene.alice.home / "lib" / "sitecustomize.py", f"if 'torchtune_sys' not in ' '.join(sys.orig_argv): {scene.payload()}"
    )
    scene.alice.write(scene.alice.home / "lib" / "random.py", scene.payload())
    return {"PYTHONPATH": str(scene.alice.home / "lib")}


def cached_code(scene: Scene) -> dict[str, str]:
    """A .pyc in the place where PYTHONPYCACHEPREFIX has the standard library's, with the times of the true one."""
    asked = "import importlib.util, sys, tempfile; print(importlib.util.cache_from_source(tempfile.__file__)); print(tempfile.__file__)"
    env = {"PYTHONPYCACHEPREFIX": str(scene.alice.home / "cache")}
    cache, source = scene.alice.run([SYSTEM_PYTHON, "-c", asked], env=env).stdout.split()
    made = (
        "import marshal, os, sys, importlib.util\n"
        "code = compile(sys.argv[1], 'x', 'exec'); info = os.stat(sys.argv[3])\n"
        "os.makedirs(os.path.dirname(sys.argv[2]), exist_ok=True)\n"
        "head = importlib.util.MAGIC_NUMBER + bytes(4) + int(info.st_mtime).to_bytes(4, 'little') + info.st_size.to_bytes(4, 'little')\n"
        "open(sys.argv[2], 'wb').write(head + marshal.dumps(code))\n"
    )
    assert scene.alice.run([SYSTEM_PYTHON, "-c", made, scene.payload(), cache, source]).returncode == 0
    return env


@pytest.mark.parametrize("attack", [home_of_theirs, site_on_pythonpath, cached_code], ids=lambda attack: attack.__name__)
def test_the_system_s_interpreter_runs_as_root_without_what_others_can_change(
    scene: Scene, attack: Callable[[Scene], dict[str, str]]
) -> None:
    env = attack(scene)
    plain([SYSTEM_PYTHON, "-c", "import random, tempfile"], **env)
    assert scene.who_ran() == {0}
    done = as_root("check", "--live", "--python", SYSTEM_PYTHON, **env)
    assert scene.who_ran() == set(), done.stdout
    assert "internal error" not in done.stderr
    if "PYTHONPATH" in env:
        assert "judged without PYTHONPATH" in done.stdout.replace("\n        ", " ")
        report = json.loads(as_root("snapshot", "--format", "json", "--python", SYSTEM_PYTHON, **env).stdout)
        assert report["facts"]["session"]["env"]["PYTHONPATH"] == env["PYTHONPATH"]
        assert report["facts"]["python"]["sys_path"][0] == env["PYTHONPATH"]
    assert scene.who_ran() == set()


def test_who_called_sudo_has_the_system_s_interpreter_judged(scene: Scene) -> None:
    home_of_theirs(scene)
    env = {"SUDO_UID": str(scene.alice.uid), "SUDO_USER": scene.alice.name}
    done = as_root("check", "--python", SYSTEM_PYTHON, **env)
    assert f"judged as user {scene.alice.name}" in done.stdout.replace("\n        ", " ")
    assert scene.who_ran() == {scene.alice.uid}, "their own site directory is part of what they train with"


def test_a_version_file_in_tmp_names_nothing_that_root_runs(scene: Scene) -> None:
    """Versions of root's own, for which a shim of root's would start whatever the file names."""
    pyenv, tmp = scene.folder / "pyenv", scene.folder / "tmp"
    tmp.mkdir()
    tmp.chmod(0o1777)
    for version in ("3.11.7", "3.12.9"):
        (pyenv / "versions" / version / "bin").mkdir(parents=True)
        (pyenv / "versions" / version / "bin" / "python3").symlink_to(SYSTEM_PYTHON)
    (pyenv / "shims").mkdir()
    shim = pyenv / "shims" / "python3"
    shim.write_text(f'#!/bin/sh\nexec "{pyenv}/versions/$(cat .python-version)/bin/python3" "$@"\n')
    shim.chmod(0o755)
    (pyenv / "version").write_text("3.11.7\n")
    scene.alice.write(scene.alice.home / "bin" / "python3", scene.shell_payload(), 0o755)
    env = {"PATH": f"{pyenv}/shims:/usr/bin:/bin"}
    for text, taken in ((f"../../../../../..{scene.alice.home}", "3.11.7"), ("3.12.9", "3.11.7")):
        scene.alice.write(tmp / ".python-version", f"{text}\n")
        subprocess.run([str(shim), "-c", "pass"], cwd=tmp, env={**os.environ, **env}, timeout=60)
        assert scene.who_ran() == ({0} if text.startswith("..") else set())
        facts = json.loads(as_root("snapshot", "--format", "json", cwd=tmp, **env).stdout)["facts"]
        assert facts["python"]["executable"] == f"{pyenv}/versions/{taken}/bin/python3"
        assert scene.who_ran() == set()
    (tmp / ".python-version").unlink()
    (tmp / ".python-version").write_text("3.12.9\n")
    facts = json.loads(as_root("snapshot", "--format", "json", cwd=tmp, **env).stdout)["facts"]
    assert facts["python"]["executable"] == f"{pyenv}/versions/3.12.9/bin/python3", "root's own file is heeded"


def test_what_an_environment_says_of_sudo_must_agree(scene: Scene) -> None:
    alice, bob = scene.alice, scene.bob
    assert caller({"SUDO_UID": str(alice.uid), "SUDO_USER": alice.name}) == account(alice.uid, alice.gid)
    for uid, name in ((bob.uid, alice.name), (alice.uid, ""), ("x", alice.name), (alice.uid, "nobody-of-that-name"), (0, "root")):
        assert caller({"SUDO_UID": str(uid), "SUDO_USER": name}) is None
    assert caller({"SUDO_UID": str(alice.uid)}) is None


def test_another_user_s_interpreter_does_not_run_as_who_called_sudo(scene: Scene) -> None:
    """It would have their rights then, and they may call sudo."""
    options, _ = environment_by_option(scene)
    as_root("check", "-q", *options, SUDO_UID=str(scene.bob.uid), SUDO_USER=scene.bob.name)
    assert scene.who_ran() == {scene.alice.uid}


def test_nobody_runs_what_two_can_change(scene: Scene) -> None:
    venv = scene.alice.venv()
    scene.bob.write(scene.alice.packages(venv) / "bobs.pth", scene.payload() + "\n")
    detail = refused(runner(f"{venv}/bin/python3"))
    assert scene.alice.name in detail and scene.bob.name in detail
    done = as_root("check", "--python", str(venv))
    assert scene.who_ran() == set()
    assert "not run as root" in " ".join(done.stdout.split())


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_may_write_to_is_refused(scene: Scene, mode: int) -> None:
    shared = scene.folder / "shared"
    shared.mkdir()
    venv = scene.alice.venv()
    venv.rename(shared / "venv")
    path = f"{shared}/venv/bin/python3"
    found = runner(path)
    assert not isinstance(found, Missing) and found is not None and found.uid == scene.alice.uid
    os.chown(shared, 0, scene.bob.gid)
    shared.chmod(mode)
    assert str(shared) in refused(runner(path))
    shared.chmod(0o1777)
    assert not isinstance(runner(path), Missing), "where nobody can replace another's, as in /tmp"


def test_a_user_s_own_group_is_nobody_else(scene: Scene) -> None:
    venv = scene.alice.venv()
    for place in (scene.alice.home, venv, venv / "bin"):
        place.chmod(0o775)
    found = runner(f"{venv}/bin/python3")
    assert not isinstance(found, Missing) and found is not None and found.uid == scene.alice.uid
    entries = (
        (1, 7, -1),
        (2, 7, scene.bob.uid),
        (4, 5, -1),
        (16, 7, -1),
        (32, 5, -1),
    )  # owner, bob, group, mask, others: linux/posix_acl_xattr.h
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(venv, "system.posix_acl_access", access)
    except OSError as error:
        pytest.skip(f"this file system has no access control lists: {error}")
    assert str(venv) in refused(runner(f"{venv}/bin/python3")), "the list of the file gives it to bob"


def test_a_pyvenv_cfg_that_others_could_lay_beside_is_seen(scene: Scene) -> None:
    shared = scene.folder / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "python3").symlink_to(SYSTEM_PYTHON)
    assert "pyvenv.cfg is not there" in refused(runner(str(shared / "python3")))
    os.chown(shared, scene.alice.uid, scene.alice.gid)
    shared.chmod(0o755)
    found = runner(str(shared / "python3"))
    assert not isinstance(found, Missing) and found is not None and found.uid == scene.alice.uid


def test_a_home_of_the_library_that_is_somebody_else_s_is_seen(scene: Scene) -> None:
    venv = scene.folder / "copied"
    (venv / "bin").mkdir(parents=True)
    (venv / "lib").mkdir()
    (venv / "bin" / "python3").write_text("#!/bin/sh\n")
    assert runner(f"{venv}/bin/python3") is None
    scene.alice.write(scene.alice.home / "python" / "bin" / "x", "")
    (venv / "pyvenv.cfg").write_text(f"home = {scene.alice.home}/python/bin\n")
    found = runner(f"{venv}/bin/python3")
    assert not isinstance(found, Missing) and found is not None and found.uid == scene.alice.uid


def test_root_s_secrets_are_not_handed_on(scene: Scene) -> None:
    options, _ = environment_by_option(scene)
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cret", "HF_TOKEN": "hf_s3cret", "VAULT_ADDR": "https://s3cret", "NCCL_DEBUG": "INFO"}
    as_root("check", "-q", *options, TMPDIR=str(scene.folder), **secrets)
    (seen,) = scene.what_ran()
    env = seen["env"]
    assert isinstance(env, dict) and "s3cret" not in str(env) and env["NCCL_DEBUG"] == "INFO"
    assert (env["HOME"], env["USER"]) == (str(scene.alice.home), scene.alice.name) and "TMPDIR" not in env


def tools_on_path(scene: Scene) -> dict[str, str]:
    for name in ("nvidia-smi", "systemctl", "chronyc", "rpm", "journalctl", "ldconfig", "lspci"):
        scene.alice.write(scene.alice.home / "bin" / name, scene.shell_payload(), 0o755)
    return {"PATH": f"{scene.alice.home}/bin:{os.environ['PATH']}"}


def test_tools_come_from_where_only_root_may_write(scene: Scene) -> None:
    env = tools_on_path(scene)
    plain(["/bin/sh", "-c", "nvidia-smi; systemctl --version"], **env)
    assert scene.who_ran() == {0}
    for argv in (["check", "-q"], ["plan"], ["record"], ["apply", "--dry-run"]):
        as_root(*argv, **env)
    assert scene.who_ran() == set()
    code = "from torchtune_sys.host.live import LiveHost; print(LiveHost().run(('nvidia-smi', '-L')))"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, cwd="/", timeout=60)
    assert scene.who_ran() == set()
    own = scene.folder / "bin"
    own.mkdir()
    (own / "nvidia-smi").write_text("#!/bin/sh\necho mine\n")
    (own / "nvidia-smi").chmod(0o755)
    kept = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PATH": f"{own}:{env['PATH']}"}, cwd="/", capture_output=True, text=True
    )
    assert "mine" in kept.stdout, "a directory of root's on PATH is as good as the system's"
    scene.alice.write(own / "nvidia-smi", scene.shell_payload(), 0o755)  # as tar(1) unpacks it there for root
    plain(["/bin/sh", "-c", "nvidia-smi"], PATH=f"{own}:/usr/bin:/bin")
    assert scene.who_ran() == {0}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PATH": f"{own}:{os.environ['PATH']}"}, cwd="/", timeout=60)
    assert scene.who_ran() == set()


@pytest.mark.parametrize("name", ["PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"])
def test_a_name_that_an_environment_gives_to_python_is_not_started(scene: Scene, name: str) -> None:
    """Neither -I nor -E makes a Python of 3.11 or later deaf to these."""
    other = scene.alice.write(scene.alice.home / "other", scene.shell_payload(), 0o755)
    places = ":".join(place for place in sys.path if place.endswith("-packages"))  # an environment is looked for beside that name
    for argv in (["rules"], ["check", "--select", "driver"]):
        done = as_root(*argv, **{name: str(other), "PYTHONPATH": places})
        assert scene.who_ran() == set(), done.stderr


LIBRARY = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%d-%d", MARKS, geteuid(), getpid());
    fclose(fopen(name, "w"));
}
"""


def test_nvml_is_not_taken_from_another_user_s_directory(scene: Scene) -> None:
    source = scene.alice.write(scene.alice.home / "false.c", LIBRARY)
    target = scene.alice.home / "libnvidia-ml.so.1"
    built = scene.alice.run(["cc", "-shared", "-fPIC", f'-DMARKS="{scene.marks}"', "-o", str(target), str(source)])
    assert built.returncode == 0, built.stderr
    env = {"LD_LIBRARY_PATH": str(scene.alice.home)}
    plain([SYSTEM_PYTHON, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"], **env)
    assert scene.who_ran() == {0}
    done = as_root("check", "-q", **env)
    assert scene.who_ran() == set() and "internal error" not in done.stderr
    facts = json.loads(as_root("snapshot", "--format", "json", **env).stdout)["facts"]
    assert facts["session"]["env"]["LD_LIBRARY_PATH"] == str(scene.alice.home), "it is still a fact of the session"
    assert scene.who_ran() == set()


def test_launch_hands_the_session_s_environment_on(scene: Scene) -> None:
    """Root's own program gets what root's session has: the tool alone goes without it."""
    env = {
        "LD_LIBRARY_PATH": str(scene.alice.home),
        "PYTHONPATH": str(scene.alice.home),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    done = as_root("launch", "-q", "--", "/usr/bin/env", **env)
    lines = done.stdout.splitlines()
    assert all(f"{name}={value}" in lines for name, value in env.items()), done
    assert not [line for line in lines if line.startswith("TORCHTUNE_SYS_SESSION_")]


def test_without_root_nobody_is_asked_for(scene: Scene) -> None:
    code = "import sys; from torchtune_sys.host.children.examined import runner; print(runner(sys.argv[1]))"
    venv = scene.bob.venv()
    done = subprocess.run(
        ["setpriv", f"--reuid={scene.alice.uid}", "--clear-groups", *PROGRAM[:1], "-c", code, f"{venv}/bin/python3"],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.stdout.strip() == "None" or "Permission denied" in done.stderr
