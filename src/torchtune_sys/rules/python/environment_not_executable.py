"""Whether the libraries of the environment may be mapped as code."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import need
from torchtune_sys.rules.gates import torch_build


@rule(
    id="environment-not-executable",
    title="The Python environment is on a file system mounted with noexec",
    severity=Severity.ERROR,
    fix=(
        Advice(text="mount it without noexec: mount -o remount,exec MOUNT-POINT, and take noexec out of its line in /etc/fstab"),
        Advice(text="or make the environment on a file system that allows execution"),
    ),
)
def environment_not_executable(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch is installed on a file system mounted with noexec, as hardening guides recommend for /home, /tmp and /dev/shm.

    Why it matters
        The kernel refuses to map its libraries as code: "import torch" ends with "failed to map segment from shared object", as NumPy's and every other
        compiled package's import does.

    When to leave it
        Never: nothing compiled can be loaded from there.

    References
        mount(8), noexec; mmap(2), EPERM: PROT_EXEC on a file system that was mounted with noexec
    """
    torch_build(s)
    place = need(need(s.python).carrier)
    yield Evidence(
        subject="the directory of torch",
        seen=f"{place.filesystem} on {place.mount_point}" + ", noexec" * place.noexec,
        wanted="a mount without noexec" if place.noexec else "",
        verdict=Verdict.FAIL if place.noexec else Verdict.PASS,
        source="/proc/self/mountinfo",
    )
