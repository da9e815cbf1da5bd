"""A host that removes secrets from every answer. Every probe, recording and plan reads through it."""

from __future__ import annotations

from typing import Any

from torchtune_sys.host.base import Host, Output, Space, Stat
from torchtune_sys.host.environment import secret
from torchtune_sys.host.secrets.filter import scrubbed, scrubbed_answer, scrubbed_file
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing

_OF_PEOPLE_IN_SYS = ("/ifalias", "/node_desc", "/backing_file")
_OF_PEOPLE_IN_PROC = ("cmdline", "mounts", "swaps")
_OF_A_PROCESS = ("mounts", "mountinfo", "cmdline", "environ")
_DISTRIBUTIONS_OWN = (
    *(f"{usr}/{lib}/" for usr in ("", "/usr") for lib in ("lib", "lib32", "lib64", "libx32")),
    *("/usr/share/", "/usr/include/", "/usr/src/", "/boot/config-", "/etc/ld.so", "/etc/os-release", "/etc/alternatives/"),
    *(f"/var/lib/{name}/" for name in ("dpkg", "rpm", "pacman", "dkms")),
)
_PROGRAMS_OWN = (".dist-info/", ".egg-info/", "/site-packages/", "/dist-packages/", "/torchtune-sys/proof")
"""Of packages, and of this tool the proofs of the smoke test: figures and digests, and nothing of their text is shown (smoke/proof.py)."""
_OF_BUILDERS = ("/direct_url.json", "/torch/version.py")
"""What whoever built or installed a package wrote there; the rest came with the package."""


def may_hold_secrets(path: str) -> bool:
    """Return whether people, or programs on their behalf, wrote the text of this file: the kernel, the distribution and packages hold none.

    >>> may_hold_secrets("/sys/class/net/eth0/mtu"), may_hold_secrets("/proc/meminfo"), may_hold_secrets("/usr/lib/os-release")
    (False, False, False)
    >>> may_hold_secrets("/var/lib/torchtune-sys/proof.json"), may_hold_secrets("/home/ada/.local/state/torchtune-sys/proof-n7.json")
    (False, False)
    >>> may_hold_secrets("/proc/cmdline"), may_hold_secrets("/proc/self/mountinfo"), may_hold_secrets("/root/.nccl.conf")
    (True, True, True)
    """
    if path.startswith("/sys/"):
        return path.endswith(_OF_PEOPLE_IN_SYS)
    if path.startswith("/proc/"):
        first, _, rest = path[len("/proc/") :].partition("/")
        of_process = first in ("self", "thread-self") or first.isdecimal()
        return first in _OF_PEOPLE_IN_PROC if not rest else of_process and rest in _OF_A_PROCESS
    if path.startswith(_DISTRIBUTIONS_OWN):
        return False
    return path.endswith(_OF_BUILDERS) or not any(part in path for part in _PROGRAMS_OWN)


class ScrubbedHost(Host):
    """Answers as ``inner`` does, without passwords, tokens and keys."""

    def __init__(self, inner: Host) -> None:
        self.inner = inner
        self.origin = inner.origin
        self.live, self.keeps_outputs = inner.live, inner.keeps_outputs
        self.intent: dict[str, Any] = getattr(inner, "intent", {})
        self._texts: dict[str, tuple[str, str]] = {}
        self._answers: dict[str, tuple[Any, Any]] = {}
        self._env: tuple[dict[str, str], dict[str, str]] | None = None

    def text(self, path: str) -> Fact[str]:
        found = self.inner.text(path)
        if isinstance(found, Missing) or not may_hold_secrets(path):
            return found
        known = self._texts.get(path)
        if known is None or known[0] is not found:
            known = self._texts[path] = (found, scrubbed_file(found, path))
        return known[1]

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        return self.inner.names(path)

    def link(self, path: str) -> Fact[str]:
        return self.inner.link(path)

    def real(self, path: str) -> Fact[str]:
        return self.inner.real(path)

    def stat(self, path: str) -> Fact[Stat]:
        return self.inner.stat(path)

    def space(self, path: str) -> Fact[Space]:
        return self.inner.space(path)

    def look_ahead(self, paths: tuple[str, ...]) -> None:
        self.inner.look_ahead(paths)

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        found = self.inner.run(argv, timeout_s)
        if isinstance(found, Missing):
            return _without_secrets(found)
        return Output(rc=found.rc, stdout=scrubbed(found.stdout), stderr=scrubbed(found.stderr))

    def env(self) -> Fact[dict[str, str]]:
        found = self.inner.env()
        if isinstance(found, Missing):
            return found
        if self._env is None or self._env[0] != found:
            self._env = (found, scrubbed_answer({name: value for name, value in found.items() if not secret(name, value)}))
        return dict(self._env[1])

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        found = self.inner.ask(question, timeout_s)
        known = self._answers.get(question)
        if known is None or known[0] is not found:
            known = self._answers[question] = (
                found,
                _without_secrets(found) if isinstance(found, Missing) else scrubbed_answer(found),
            )
        return known[1]


def _without_secrets(missing: Missing) -> Missing:
    """Return why a tool told nothing: what it said of why it failed may be anything."""
    return Missing(missing.why, missing.source, scrubbed(missing.detail), missing.remedy)
