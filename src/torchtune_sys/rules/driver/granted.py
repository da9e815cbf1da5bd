"""GPUs that a container was, or should have been, given."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Install
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.driver.access import asked_for_none
from torchtune_sys.rules.driver.common import container, gpu_addresses, require_module

_WITH_GPUS = Advice(
    text="start the container with GPUs: docker run --gpus all, podman run --device nvidia.com/gpu=all, apptainer --nv"
)
_NO_RUNTIME = Advice(
    text="a GPU was granted, and the runtime brings none in: Kubernetes: runtimeClassName: nvidia in the pod; gVisor: runsc with --nvproxy; Kata: a GPU "
    "that is passed through"
)


@rule(
    id="container-without-gpu-devices",
    title="The host has NVIDIA GPUs, but this container was given none",
    severity=Severity.ERROR,
    cause="container-toolkit-missing",
    fix=(
        Install(
            text="install nvidia-container-toolkit on the host: nvidia-ctk runtime configure, then restart the container runtime"
        ),
        _WITH_GPUS,
    ),
)
def container_without_gpu_devices(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The host's kernel runs the NVIDIA module, or NVIDIA_VISIBLE_DEVICES names a GPU by its UUID, torch is a CUDA build, and the container has no
    /dev/nvidia*.

    Why it matters
        Training silently runs on the CPU, or fails with "Found no NVIDIA driver on your system".

    When to leave it
        The container is meant to run on the CPU. It is unknown where NVIDIA_VISIBLE_DEVICES is void or none: whoever started it asked for no GPU.

    References
        https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
    """
    kind = container(s)
    promised = _promised(s) if kind and not known(need(s.driver).wsl, False) else ""
    if promised and not known(need(s.driver).device_nodes, ("?",)):
        gates.cuda_torch(s)
        yield Evidence(
            subject=f"container ({kind})",
            seen=f"no node /dev/nvidia*, and NVIDIA_VISIBLE_DEVICES={promised}",
            wanted="the nodes of the GPUs to train on",
            source="/dev",
            fix=(_NO_RUNTIME,) if kind == "kubernetes" else (_NO_RUNTIME, _WITH_GPUS),
        )
        return
    gpu_addresses(s)
    if not kind:
        raise NotApplicable("not in a container")
    require_module(s)
    nodes = need(need(s.driver).device_nodes)
    if not nodes:
        gates.cuda_torch(s)
        if told := asked_for_none(s):
            why = Missing(
                Why.NOT_RECORDED,
                "NVIDIA_VISIBLE_DEVICES",
                f"whether the container is meant to train on GPUs{told}",
                remedy="NVIDIA_VISIBLE_DEVICES=all",
            )
            yield unsure(f"container ({kind})", why, "the nodes of the GPUs to train on")
            return
    yield Evidence(
        subject=f"container ({kind})",
        seen=f"{len(nodes)} nodes /dev/nvidia*",
        wanted="the nodes of the GPUs to train on",
        verdict=Verdict.PASS if nodes else Verdict.FAIL,
        source="/dev",
    )


def _promised(s: Snapshot) -> str:
    """Return the GPU that whoever granted it named: a device plug-in writes UUIDs, images of NVIDIA's say "all" wherever they are started."""
    asked = variables_told(s).get("NVIDIA_VISIBLE_DEVICES", "")
    return asked if asked.startswith(("GPU-", "MIG-")) else ""
