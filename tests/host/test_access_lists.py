"""Access lists (acl(5), NFSv4) and user namespaces: who may write where is more than the permission bits say."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from torchtune_sys.host import trust
from torchtune_sys.host.account import account
from torchtune_sys.host.children.examined import runner
from torchtune_sys.host.live import read_text
from torchtune_sys.host.scratch import directory
from torchtune_sys.model.values import Missing, Why
from two_users import SYSTEM_PYTHON, Scene, as_root, needs_root, system_minor

OWNER, USER, GROUP_OWNER, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF


def listed(
    path: Path, *named: tuple[int, int, int], owner: int = 7, group: int = 5, mask: int = 7, other: int = 5, kind: str = "access"
) -> None:
    """What ``setfacl`` writes: linux/posix_acl_xattr.h."""
    entries = [(OWNER, owner, NOBODY), (GROUP_OWNER, group, NOBODY), *named, (MASK, mask, NOBODY), (OTHER, other, NOBODY)]
    try:
        data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))
        os.setxattr(path, f"system.posix_acl_{kind}", data)
    except OSError as error:
        pytest.skip(f"this file system has no access lists: {error.strerror}")


def venv_of_root(scene: Scene) -> tuple[Path, Path]:
    venv = scene.folder / "roots"
    packages = venv / "lib" / f"python{system_minor()}" / "site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text("")
    (venv / "bin").mkdir()
    (venv / "bin" / "python3").symlink_to(SYSTEM_PYTHON)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for place in (venv, *venv.rglob("*")):
        if place.is_dir():
            place.chmod(0o775)  # as umask 002 makes them; the group is root's
    return venv, packages


@needs_root
@pytest.mark.parametrize("where", ["bin", "site-packages", "a package"])
def test_whom_an_access_list_lets_write_runs_no_code_as_root(scene: Scene, where: str) -> None:
    venv, packages = venv_of_root(scene)
    place = {"bin": venv / "bin", "site-packages": packages, "a package": packages / "torch"}[where]
    assert runner(str(venv / "bin" / "python3")) is None, "root's alone: it runs as root"
    listed(place, (USER, 7, scene.bob.uid))
    target = {"bin": venv / "bin" / "python3", "site-packages": packages / "torch" / "__init__.py"}.get(
        where, place / "__init__.py"
    )
    moved = place / "torch" if where == "site-packages" else target
    put = f"mv {moved} {place}/old && mkdir -p {target.parent} && cat > {target} && chmod 755 {target}"
    start = "" if where == "bin" else "import torch"
    done = scene.bob.run(["/bin/sh", "-c", put], input=scene.shell_payload() if where == "bin" else scene.payload())
    assert done.returncode == 0, f"the list lets bob write there: {done.stderr}"
    subprocess.run([str(venv / "bin" / "python3"), "-B", "-c", start], capture_output=True, timeout=60)
    assert scene.who_ran() == {0}, "plainly started it is bob's code as root"
    found = as_root("check", "-q", "--live", "--python", str(venv), timeout=200)
    assert 0 not in scene.who_ran(), found.stderr
    refused = runner(str(venv / "bin" / "python3"))
    assert isinstance(refused, Missing) or (refused is not None and refused.uid == scene.bob.uid)


@needs_root
def test_a_list_that_lets_nobody_else_write_refuses_nothing(scene: Scene) -> None:
    venv, packages = venv_of_root(scene)
    listed(packages, (USER, 5, scene.bob.uid), group=7)
    assert runner(str(venv / "bin" / "python3")) is None, "bob may read; root's group has only root"
    listed(packages, (USER, 7, scene.bob.uid), mask=5)
    assert runner(str(venv / "bin" / "python3")) is None, "the mask takes bob's right to write"
    listed(packages, (USER, 7, 0))
    assert runner(str(venv / "bin" / "python3")) is None
    listed(packages, (GROUP, 7, scene.bob.gid))
    assert isinstance(runner(str(venv / "bin" / "python3")), Missing)


@needs_root
def test_a_list_for_new_files_gives_nobody_what_root_writes(scene: Scene) -> None:
    """``setfacl -d``: what is made there inherits bob's entry; the mode that we make it with is its mask."""
    shared = scene.folder / "shared"
    shared.mkdir()
    listed(shared, (USER, 7, scene.bob.uid), kind="default")
    (shared / "plain").write_text("x")
    (shared / "plain").chmod(0o664)
    assert scene.bob.run(["/bin/sh", "-c", f"echo y >> {shared}/plain"]).returncode == 0, "a plain file is bob's to change"
    assert as_root("rules", "-o", str(shared / "ours")).returncode == 0
    assert scene.bob.run(["/bin/sh", "-c", f"echo y >> {shared}/ours"]).returncode != 0
    assert scene.bob.run(["/bin/cat", str(shared / "ours")]).returncode != 0
    with directory(str(shared)) as made:
        assert scene.bob.run(["/bin/sh", "-c", f"echo y > {made}/x || ls {made}"]).returncode != 0


@needs_root
def test_root_reads_for_a_user_what_the_list_lets_them_read(scene: Scene) -> None:
    secret = scene.folder / "secret"
    secret.write_text("root's")
    alice = account(scene.alice.uid, scene.alice.gid)

    def both() -> tuple[bool, bool]:
        """What the kernel says, and what we do."""
        ours = read_text(str(secret), "x", lent=(alice.uid,))
        return scene.alice.run(["/bin/cat", str(secret)]).returncode == 0, not isinstance(ours, Missing)

    for mode, named, more in (
        (0o644, (), {}),
        (0o640, (), {}),
        (0o644, ((USER, 0, scene.alice.uid),), {"mask": 5, "other": 4}),
        (0o640, ((USER, 4, scene.alice.uid),), {"mask": 4, "other": 0}),
        (0o640, ((USER, 4, scene.alice.uid),), {"mask": 0, "other": 0}),
        (0o640, ((GROUP, 4, scene.alice.gid),), {"mask": 4, "other": 0}),
        (0o640, ((USER, 4, scene.bob.uid),), {"group": 0, "mask": 4, "other": 0}),
        (0o644, ((GROUP, 0, scene.alice.gid),), {"mask": 4, "other": 4}),
    ):
        secret.chmod(mode)
        if named:
            listed(secret, *named, **{"owner": 6, "group": 4, **more})
        kernel, ours = both()
        assert ours == kernel, (oct(mode), named, more)
    os.chown(secret, 0, scene.alice.gid)
    listed(secret, (USER, 4, scene.bob.uid), owner=6, group=0, mask=4, other=0)
    assert os.stat(secret).st_mode & 0o040, "the group's bits are the mask, and not the group's right"
    assert both() == (False, False)


def nfs_list(*entries: tuple[int, int, int, bytes]) -> bytes:
    """What the client of NFSv4 gives as system.nfs4_acl: a counted array of XDR (RFC 7530, 6.2.1)."""
    found = struct.pack(">I", len(entries))
    for kind, flags, mask, who in entries:
        found += struct.pack(">IIII", kind, flags, mask, len(who)) + who + bytes(-len(who) % 4)
    return found


READ, WRITE, WRITE_LIST = 0x1, 0x2, 0x40000
USUAL = ((0, 0, 0x1601FF, b"OWNER@"), (0, 0x40, 0x1200A9, b"GROUP@"), (0, 0, 0x1200A9, b"EVERYONE@"))


@pytest.mark.parametrize(
    ("entries", "others"),
    [
        ((), False),
        ((0, 0, WRITE, b"bob@example.org"), True),
        ((0, 0, WRITE, b"1001"), True),
        ((0, 0x40, WRITE_LIST, b"admins@example.org"), True),
        ((0, 0, READ, b"bob@example.org"), False),
        ((1, 0, WRITE, b"bob@example.org"), False),
        ((0, 8, WRITE, b"bob@example.org"), False),
        ((0, 0, WRITE, b"root@example.org"), False),
    ],
)
def test_a_list_of_nfs_that_the_mode_does_not_tell(entries: tuple[int, int, int, bytes] | tuple[()], others: bool, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The bytes are made here: no server of NFSv4 was asked."""
    data = nfs_list(*USUAL, *([entries] if entries else []))
    tmp_path.chmod(0o755)
    monkeypatch.setattr(trust, "_attribute", lambda _place, name: data if name == "system.nfs4_acl" else b"")
    assert trust.others_may_write(str(tmp_path), os.stat(tmp_path)) is others
    for length in range(len(data)):
        (
            trust.others_may_write(str(tmp_path), os.stat(tmp_path)),
            monkeypatch.setattr(trust, "_attribute", lambda *_, cut=length: data[:cut]),
        )


@needs_root
def test_a_user_whom_a_namespace_does_not_map_is_nobody_s_system(scene: Scene) -> None:
    """As root of a namespace of one's own, all whom it does not map look alike: root, who owns /, and bob, who laid something in /tmp."""
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    scene.bob.write(shared / "x" / "bin" / "python3", scene.shell_payload(), 0o755)
    code = (
        "import sys; sys.path[:0] = {path!r}\n"
        "from torchtune_sys.host.trust import distrust\n"
        "print(distrust({theirs!r}) or 'trusted', '|', distrust('/usr/bin/python3') or 'trusted')"
    )
    code = code.format(path=sys.path, theirs=str(shared / "x" / "bin" / "python3"))
    argv = ["unshare", "--user", "--map-root-user", sys.executable, "-I", "-c", code]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, user=scene.alice.uid, group=scene.alice.gid, extra_groups=[]
    )
    if done.returncode or "|" not in done.stdout:
        argv[3] = SYSTEM_PYTHON
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, user=scene.alice.uid, group=scene.alice.gid, extra_groups=[]
        )
    if done.returncode:
        pytest.skip(f"no user namespaces here: {done.stderr[-200:]}")
    theirs, system = done.stdout.strip().split(" | ")
    assert (theirs != "trusted", system) == (True, "trusted"), done.stdout


@needs_root
def test_who_runs_a_child_has_neither_our_terminal_nor_our_memory(scene: Scene) -> None:
    """A child that shares the terminal types into root's shell (TIOCSTI); one that is not separated by execve(2) can be traced."""
    from torchtune_sys.host.children import process

    alice = account(scene.alice.uid, scene.alice.gid)
    code = "import os\ntry:\n os.open('/dev/tty', os.O_RDWR); print('a terminal')\nexcept OSError as e: print(e.errno)\nprint(os.getsid(0) == os.getpid())"
    done = process.run((SYSTEM_PYTHON, "-c", code), timeout_s=60, user=alice)
    assert not isinstance(done, Missing) and done.stdout.split() == ["6", "True"], done
    look = f"import os\ntry:\n open('/proc/{os.getpid()}/mem', 'rb'); print('memory')\nexcept OSError: print('none')"
    done = process.run((SYSTEM_PYTHON, "-c", look), timeout_s=60, user=alice)
    assert not isinstance(done, Missing) and done.stdout.split() == ["none"]


def test_denied_is_why(scene: Scene) -> None:
    if os.getuid():
        pytest.skip("needs root")
    venv, packages = venv_of_root(scene)
    listed(packages, (USER, 7, scene.bob.uid))
    found = runner(str(venv / "bin" / "python3"))
    assert isinstance(found, Missing) and found.why is Why.DENIED and str(packages) in found.detail


@needs_root
def test_one_decision_about_many_paths_keeps_for_whom_each_step_was_passed(scene: Scene) -> None:
    theirs = scene.folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, scene.bob.uid, scene.bob.gid)
    decision = trust.Decision()
    assert trust.distrust(str(theirs), frozenset({scene.bob.uid}), seen=decision) == ""
    assert "belongs to user" in trust.distrust(str(theirs), seen=decision), "passed for bob, and so for nobody else"
    shared = scene.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert trust.distrust(str(shared / "file"), seen=decision) == trust.distrust(str(shared / "file"))
    assert trust.distrust(str(shared), may_be_shared=True, seen=decision) == ""
    assert "others may write" in trust.distrust(str(shared), seen=decision), "the sticky bit helps only on the way"
