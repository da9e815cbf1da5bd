"""Users of this machine, for starting a child process as one of them."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec

from torchtune_sys.host import threads
from torchtune_sys.host.trust import GROUP_OWNER, MASK, NAMED_GROUP, NAMED_USER, access_list
from torchtune_sys.model.numbers import natural

_T = TypeVar("_T")
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "riscv64": 219, "s390x": 280}
_JOIN_SESSION_KEYRING = 1
_STARTING_S, _LOOK_S = 60.0, 0.25
_NO_KEYRINGS = (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
"""A kernel without them, or a container that forbids the call: to the child, too."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """All that a process is started with to be somebody else's."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    login_shell: str

    def may_pass(self, info: os.stat_result, place: str) -> bool:
        """Return whether this user may enter a directory or execute a file."""
        return self._may(info, place, stat.S_IXOTH)

    def may_read(self, info: os.stat_result, place: str | int) -> bool:
        """Return whether this user may read a file (its path, or a descriptor of it)."""
        return self._may(info, place, stat.S_IROTH)

    def _may(self, info: os.stat_result, place: str | int, bit: int) -> bool:
        """``bit`` as of others; the owner's and the group's stand above it. Source: acl(5), ACCESS CHECK ALGORITHM."""
        if info.st_uid == self.uid:
            return bool(info.st_mode & bit << 6)
        mine = (self.gid, *self.groups)
        listed = access_list(place)
        if not listed:
            return bool(info.st_mode & (bit << 3 if info.st_gid in mine else bit))
        mask = next((permission for tag, permission, _ in listed if tag == MASK), 7)
        for tag, permission, number in listed:
            if tag == NAMED_USER and number == self.uid:
                return bool(permission & mask & bit)
        of_groups = [
            permission
            for tag, permission, number in listed
            if (tag == GROUP_OWNER and info.st_gid in mine) or (tag == NAMED_GROUP and number in mine)
        ]
        return any(permission & mask & bit for permission in of_groups) if of_groups else bool(info.st_mode & bit)


def account(uid: int, gid: int) -> Account:
    """Return the user of that number; one without an entry in the user database gets ``gid`` alone, and no home."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid=uid, gid=gid or uid, groups=(gid or uid,), name=str(uid), home="/", login_shell="/bin/sh")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(
        uid=uid,
        gid=entry.pw_gid,
        groups=groups,
        name=entry.pw_name,
        home=entry.pw_dir or "/",
        login_shell=entry.pw_shell or "/bin/sh",
    )


def callers(env: Mapping[str, str]) -> tuple[Account, ...]:
    """Return the users whom the variables of sudo, doas and pkexec name, where they agree with the user database; root is none of them.

    One of them called: each program sets its own variables, and lets pass the others', which whoever called may have made up (doas with keepenv,
    ``sudo -E``). Source: sudo(8), ENVIRONMENT (SUDO_UID, SUDO_USER); doas(1), ENVIRONMENT (DOAS_USER); pkexec(1), ENVIRONMENT (PKEXEC_UID).
    """
    told = [("", env["DOAS_USER"])] if "DOAS_USER" in env else []
    told += [(env["PKEXEC_UID"], "")] if "PKEXEC_UID" in env else []
    told += [(env["SUDO_UID"], env["SUDO_USER"])] if env.get("SUDO_UID") and env.get("SUDO_USER") else []
    found = [_named(uid, name) for uid, name in told]
    return tuple({each.uid: each for each in found if each is not None}.values())


def caller(env: Mapping[str, str]) -> Account | None:
    """Return who called sudo, doas or pkexec; None for root, for nobody, and where their variables name several."""
    found = callers(env)
    return found[0] if len(found) == 1 else None


def _named(uid: str, name: str) -> Account | None:
    if uid and natural(uid, 9) is None:
        return None
    try:
        entry = pwd.getpwnam(name) if name else pwd.getpwuid(int(uid or 0))
    except (KeyError, ValueError):
        return None
    told = entry.pw_uid and (not uid or entry.pw_uid == int(uid))
    return account(entry.pw_uid, entry.pw_gid) if told else None


def without_our_keys(start: Callable[[], _T], is_held: Callable[[], bool]) -> _T:
    """Start a process that does not inherit our session keyring: whoever possesses one reads its keys (Kerberos tickets, disk keys), whatever
    user they are; nor our capabilities, of which a unit may have had some kept over a change of user, nor what spares us from the OOM killer. Raises OSError where they cannot be left, TimeoutError where ``start``
    does not return before ``is_held`` says so or a minute is over, and what it raises.

    Both belong to the thread, so it is done in one that ends. Source: keyrings(7), session-keyring(7), keyctl(2), capabilities(7).
    """
    done: list[_T] = []
    failed: list[BaseException] = []

    def body() -> None:
        try:
            _leave_keyring()
            _leave_capabilities()
            with _spared_as_others_are():
                done.append(start())
        except BaseException as error:
            failed.append(error)

    try:
        is_over_within = threads.start(body)
    except RuntimeError as error:  # a limit on threads, or a filter of system calls
        raise BlockingIOError(errno.EAGAIN, str(error)) from error
    limit = time.monotonic() + _STARTING_S
    while not is_over_within(_LOOK_S):
        if is_held() or time.monotonic() > limit:
            raise TimeoutError(errno.ETIMEDOUT, "a process was not started in time")
    if failed:
        raise failed[0]
    return done[0]


_OOM_SCORE = "/proc/self/oom_score_adj"


@contextlib.contextmanager
def _spared_as_others_are() -> Iterator[None]:
    """Start a child without our score, which a unit (OOMScoreAdjust=) or slurmd may have made so low (it is the child's, too) that the kernel kills whatever else first (proc(5), oom_score_adj)."""
    before = b""
    with contextlib.suppress(OSError), open(_OOM_SCORE, "rb") as file:
        before = file.read().strip()
    if not before.startswith(b"-"):
        yield
        return
    _set_oom_score(b"0")
    try:
        yield
    finally:
        _set_oom_score(before)


def _set_oom_score(score: bytes) -> None:
    with contextlib.suppress(OSError), open(_OOM_SCORE, "wb", buffering=0) as file:
        file.write(score)


def _leave_keyring() -> None:
    number = _KEYCTL.get(os.uname().machine)
    try:
        import ctypes
    except ImportError:  # a Python without it (Debian's python3-minimal) cannot make the call
        return
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None) < 0:
        error = ctypes.get_errno()
        if error not in _NO_KEYRINGS:
            raise OSError(error, os.strerror(error), "keyctl")


_VERSION_3 = 0x20080522
"""Of capget(2): two words of 32 bits for each set."""


def _leave_capabilities() -> None:
    """Empty the set that execve(2) hands on, and with it the ambient one: setuid(2) leaves that where SECBIT_NO_SETUID_FIXUP is set. Raises OSError."""
    try:
        import ctypes
    except ImportError:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) == 0 and sets[2] | sets[5]:
        sets[2] = sets[5] = 0
        if libc.capset(header, sets):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), "capset")
