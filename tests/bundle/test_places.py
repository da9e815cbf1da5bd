"""Where the self-contained file unpacks: without a home, from a read-only file system, on full, noexec and hostile ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundled import NOBODY, apart, may_mount, surroundings, system_python

pytestmark = [pytest.mark.long, pytest.mark.skipif(not may_mount(), reason="needs root, unshare and setpriv")]
SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/var/cache")
EMPTY = "mount -t tmpfs -o mode=1777 none /tmp"


def each(options: str) -> str:
    return "\n".join(f"mount -t tmpfs -o mode=1777,{options} none {folder}" for folder in SHARED)


def test_a_user_without_a_home_and_a_file_that_is_read_only(bundle: Path) -> None:
    python = system_python()
    argv = ["sh", "-c", f"{python} tt.pyz rules >/dev/null && ls -ld /tmp/torchtune-sys-{NOBODY}"]
    done = apart(bundle, EMPTY, *argv, user=NOBODY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("drwx------ ")


def test_root_without_a_home_takes_the_system_cache(bundle: Path) -> None:
    done = apart(
        bundle,
        each("size=50m"),
        "sh",
        "-c",
        "./tt.pyz --version && ls /var/cache/torchtune-sys",
        env={"PATH": surroundings()["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    assert "-cp3" in done.stdout


def test_a_cache_where_no_library_may_be_mapped_is_passed_over(bundle: Path) -> None:
    """Noexec is common for homes and /tmp on clusters."""
    mounts = each("size=50m") + "\nmount -o remount,noexec /tmp\nmount -t tmpfs -o noexec none /srv"
    env = surroundings(XDG_CACHE_HOME="/srv", TMPDIR="/tmp")
    done = apart(bundle, mounts, "sh", "-c", "./tt.pyz rules >/dev/null && ls -A /var/cache /srv", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["/srv:", "/var/cache:", "torchtune-sys"]


def test_noexec_everywhere_libraries_are_loaded_from_memory(bundle: Path) -> None:
    script = (
        "for i in 1 2; do ./tt.pyz rules >/dev/null || exit; done; python3 tt.pyz check -q; ls -d /tmp/t* /var/*/torchtune-sys"
    )
    done = apart(bundle, each("noexec"), "sh", "-c", script)
    assert done.returncode in (0, 2), done.stderr  # ls: some are not there
    assert "torchtune-sys: " not in done.stderr, done.stderr
    assert "/var/cache/torchtune-sys" in done.stdout.split()


def test_nothing_may_be_written(bundle: Path) -> None:
    done = apart(bundle, each("ro"), "./tt.pyz", "check")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    for folder in ("/nonexistent/.cache", *SHARED):
        assert f"{folder}/torchtune-sys" in done.stderr
    assert "Read-only file system" in done.stderr
    assert "TORCHTUNE_SYS_CACHE=" in done.stderr


def test_a_full_disk_is_passed_over_and_left_empty(bundle: Path) -> None:
    mounts = each("size=50m") + "\nmount -t tmpfs -o size=1m none /srv"
    done = apart(
        bundle, mounts, "sh", "-c", "./tt.pyz --version && ls -A /srv/torchtune-sys", env=surroundings(XDG_CACHE_HOME="/srv")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [".lock"]


def test_all_disks_full(bundle: Path) -> None:
    done = apart(bundle, each("size=1m"), "./tt.pyz", "check")
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1


TRAP = """
mkdir -p $place/$(cat /run/tt-name)/.checked
echo 'print("trapped")' >$place/$(cat /run/tt-name)/torchtune-sys
touch $place/$(cat /run/tt-name)/.checked/$(cat /proc/sys/kernel/random/boot_id)
"""
PREPARED = {
    "somebody else's": "chown -R 1234 $place; chmod 755 $place",
    "everybody's": f"chown {NOBODY} $place; chmod 777 $place",
    "a group's": f"chown {NOBODY}:1234 $place; chmod 770 $place",
    "a link": "chown -R 1234 $place; mv $place /tmp/theirs; ln -s /tmp/theirs $place",
    "a link to a folder of the user's own": f"chown -R {NOBODY} $place; mv $place /tmp/own; ln -s /tmp/own $place",
    "below another user's": f"mkdir /tmp/theirs; mv $place /tmp/theirs/torchtune-sys-{NOBODY}; chown 1234 /tmp/theirs; chown -R {NOBODY} /tmp/theirs/*",
}


@pytest.fixture(scope="module")
def name(bundle: Path) -> str:
    """What the unpacked folder is called for the system's Python."""
    python = system_python()
    done = apart(
        bundle,
        EMPTY,
        "sh",
        "-c",
        f"{python} tt.pyz --version >/dev/null && cd /tmp/torchtune-sys-{NOBODY} && echo 0*",
        user=NOBODY,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("kind", PREPARED)
def test_a_folder_that_somebody_prepared_is_refused(kind: str, name: str, bundle: Path) -> None:
    """In /tmp anybody may make the folder first, with whatever in it."""
    trap = TRAP.replace("$(cat /run/tt-name)", name)
    mounts = f"{each('size=50m')}\nplace=/tmp/torchtune-sys-{NOBODY}\n{trap}\n{PREPARED[kind]}"
    env = surroundings(**({"TMPDIR": "/tmp/theirs"} if kind.startswith("below") else {}))
    command = f"{system_python()} tt.pyz --version && cd /tmp && ls -d /var/tmp/torchtune-sys-* /tmp/torchtune-sys-*/*"
    done = apart(bundle, mounts, "sh", "-c", command, user=NOBODY, env=env)
    assert "trapped" not in done.stdout
    assert done.stdout.startswith("torchtune-sys, version"), done.stderr


def test_every_usual_name_is_taken(bundle: Path) -> None:
    """Anybody may do that; also root of a user namespace meets the folders of the host's root."""
    mounts = each("size=50m") + "".join(f"\nmkdir {folder}/torchtune-sys-{NOBODY}" for folder in SHARED)
    command = f"for i in 1 2; do {system_python()} tt.pyz rules >/dev/null; done; ls -d /*/torchtune-sys-{NOBODY}-* /var/tmp/*-{NOBODY}-*"
    done = apart(bundle, mounts, "sh", "-c", command, user=NOBODY)
    assert "torchtune-sys: " not in done.stderr
    assert len(done.stdout.split()) == 1  # the second start found what the first had made


def test_root_does_not_take_what_lies_in_a_users_home(bundle: Path, name: str) -> None:
    """As below sudo, which may keep HOME."""
    trap = TRAP.replace("$(cat /run/tt-name)", name)
    mounts = (
        f"{each('size=50m')}\nmkdir -p /tmp/home/.cache\nplace=/tmp/home/.cache/torchtune-sys\n{trap}\nchown -R 1234 /tmp/home"
    )
    done = apart(bundle, mounts, system_python(), "tt.pyz", "--version", env=surroundings(HOME="/tmp/home"))
    assert done.stdout.startswith("torchtune-sys, version"), done.stderr


def test_what_root_unpacked_for_all_is_taken(bundle: Path) -> None:
    """TORCHTUNE_SYS_CACHE names a folder of root's that the user may not write."""
    python = system_python()
    mounts = f"{each('size=50m')}\nTORCHTUNE_SYS_CACHE=/var/cache/tt {python} /mnt/tt.pyz --version >/dev/null\nchmod -R a+rX /var/cache/tt"
    env = surroundings(TORCHTUNE_SYS_CACHE="/var/cache/tt")
    done = apart(bundle, mounts, "sh", "-c", f"{python} tt.pyz rules >/dev/null && ls -A /tmp /var/tmp", user=NOBODY, env=env)
    assert done.returncode == 0, done.stderr
    assert "torchtune-sys" not in done.stdout
