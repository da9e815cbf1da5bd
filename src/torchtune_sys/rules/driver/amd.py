"""Access to AMD's compute device."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Action, Advice, Needs
from torchtune_sys.model.rule import Evidence, Params, Rule, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, absent, need


@rule(
    id="rocm-device-permission",
    title="This user may not open AMD's compute device",
    severity=Severity.ERROR,
    cause="rocm-device-permission",
    fix=(
        Advice(
            text="add the user to the group that owns /dev/kfd (often render): sudo usermod -aG render USER", needs=Needs.LOGIN
        ),
        Advice(
            text="in a container: --device /dev/kfd --device /dev/dri --group-add GID, with the number of the node's group on the host: "
            "an image may not know the name render"
        ),
    ),
)
def rocm_device_permission(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/kfd exists, but its permissions do not let this user read and write it.

    Why it matters
        ROCm opens it first; without it, torch.cuda.is_available() is False and rocminfo says "Unable to open /dev/kfd
        read-write".

    When to leave it
        This user deliberately has no access to the GPUs; a job scheduler grants it.

    References
        https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html, "Configuring permissions for
        GPU access"
    """
    devices = need(s.driver).amd_devices
    if absent(devices) or not need(devices):
        raise NotApplicable("no AMD GPU on this host")
    found = need(s.driver).compute_node
    if absent(found):
        raise NotApplicable("no /dev/kfd here: amdgpu is not loaded, or the container was given none")
    node = need(found)
    yield Evidence(
        subject=node.path,
        seen=f"mode {node.mode:04o}, uid {node.uid}, gid {node.gid}",
        wanted="readable and writable for this user",
        verdict=Verdict.PASS if need(node.accessible) else Verdict.FAIL,
        source=node.path,
        fix=_of_root() if node.gid == 0 else (),
    )


def _of_root() -> tuple[Action, ...]:
    """Return what helps where the node belongs to root's group, to which nobody should be added."""
    return (
        Advice(
            text="install the udev rules that come with ROCm (amdgpu-install, or the package rocm-core); they give the node to the group "
            "render. Then run sudo udevadm trigger"
        ),
        Advice(text="in a container: first give the node to a group on the host, then pass that group's number: --group-add GID"),
    )


RULES: tuple[Rule, ...] = (rocm_device_permission,)
