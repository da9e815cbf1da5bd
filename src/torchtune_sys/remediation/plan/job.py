"""The environment variables of a job on this host: from failed rules, and for threads, interfaces, allocators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torchtune_sys.knowledge import nccl
from torchtune_sys.knowledge.install import TUNING_GUIDE
from torchtune_sys.model.actions import EnvironmentVariable
from torchtune_sys.model.job import JobVariable
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, absent, known, need
from torchtune_sys.model.version import version
from torchtune_sys.remediation.plan.change_requests import failing
from torchtune_sys.rules import gates
from torchtune_sys.rules.cpu import common as cpu_budget
from torchtune_sys.rules.nccl import common as nccl_choice

MADE_FROM = ("session", "cpu", "network", "driver", "gpu", "python")
"""Facts of which variables are made without a rule."""
_EXAMPLES = ("/local/", "/path/", "/directory/")
"""How values begin that stand for a place which only a person knows."""
_JEMALLOC_CONF = (
    "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:9000000000,muzzy_decay_ms:9000000000"
)


def variables(s: Snapshot, results: Iterable[Result], allocators: Iterable[str] = ()) -> tuple[JobVariable, ...]:
    """Return one variable for each name, what failed rules ask for first. ``allocators`` are the paths of jemalloc and tcmalloc that are there. A value that is no line of
    plain signs is the name of something of a stranger's, and is offered to nobody: terminals act upon it, and not each form can hold it."""
    found: dict[str, JobVariable] = {}
    for variable in (
        *_of_rules(s, results),
        *_from(_threads, s),
        *_from(_interfaces, s),
        *_from(_gpus, s),
        *_allocator(s, tuple(allocators)),
    ):
        if variable.value is None or variable.value.isprintable():
            found.setdefault(variable.name, variable)
    return tuple(found.values())


def _from(make: Callable[[Snapshot], Iterator[JobVariable]], s: Snapshot) -> Iterator[JobVariable]:
    """Yield the variables of a finding; what cannot be judged here asks for nothing."""
    try:
        yield from make(s)
    except (Unknown, NotApplicable):
        return


def _of_rules(s: Snapshot, results: Iterable[Result]) -> Iterator[JobVariable]:
    env = variables_told(s)
    for result in results:
        for item in failing(result):
            for action in item.fix or result.rule.fix:
                if isinstance(action, EnvironmentVariable) and (action.value is not None or action.name in env):
                    sure = action.value is None or not action.value.startswith(_EXAMPLES)
                    reason = f"{result.rule.title} ({item.subject}: {item.seen})"
                    yield JobVariable(name=action.name, value=action.value, reason=reason, source=result.rule.id, sure=sure)


def _threads(s: Snapshot) -> Iterator[JobVariable]:
    """torchrun sets 1 where nobody chose; torch by itself takes every core that it sees, for each rank."""
    if "OMP_NUM_THREADS" in variables_told(s) or s.intent.threads is not None:
        return
    ranks, have = gates.ranks_here(s), cpu_budget.budget(s)
    assumed = isinstance(have.exact, Missing) and have.exact.why is Why.NOT_RECORDED
    if not assumed:
        have.settle()
    cores = min(have.cpus, cpu_budget.default_threads(need(s.cpu)))
    each = max(int(cores // ranks) - (s.intent.workers or 0), 1)
    words = f"{cpu_budget.some(cores, 'core')} for {cpu_budget.some(ranks, 'rank')}"
    words += f", {s.intent.workers} of each for its DataLoader workers" if s.intent.workers else ""
    reason = words + (", if the job may use every CPU of this host: which ones it may was not seen" if assumed else "")
    yield JobVariable(name="OMP_NUM_THREADS", value=str(each), reason=reason, source="cpu-oversubscribed")


def _interfaces(s: Snapshot) -> Iterator[JobVariable]:
    """Named only where the libraries' own choice is doubtful: names may differ on the job's other hosts."""
    if (s.intent.nodes or 1) < 2:
        return
    network, env = need(s.network), variables_told(s)
    good = nccl_choice.better(s)
    if not good:
        return
    if "GLOO_SOCKET_IFNAME" not in env:
        addresses = () if absent(network.hostname_addresses) else need(network.hostname_addresses)
        for choice in nccl.predict_gloo(need(network.interfaces), addresses, ()).choices[:1]:
            yield from _named("GLOO_SOCKET_IFNAME", "Gloo", choice, s, good)
    if "NCCL_SOCKET_IFNAME" not in env and gates.gpu_count(s):
        for choice in nccl_choice.prediction(s).choices[:1]:
            yield from _named("NCCL_SOCKET_IFNAME", "NCCL", choice, s, good)


def _named(name: str, library: str, choice: nccl.InterfaceChoice, s: Snapshot, good: tuple[str, ...]) -> Iterator[JobVariable]:
    network = need(s.network)
    interface = nccl_choice.interface_named(network, choice.interface)
    why = nccl_choice.doubt(s, interface, choice.address) if interface is not None else "an interface that is gone"
    if why:
        reason = f"{library} would take {choice.interface} ({choice.address}): {why}"
        yield JobVariable(name=name, value=good[0], reason=reason, source="nccl-interface-doubtful")


def _gpus(s: Snapshot) -> Iterator[JobVariable]:
    gates.cuda_torch(s)
    gpus, env = gates.nvidia_gpus(s), variables_told(s)
    if not gpus:
        return
    if len({known(gpu.name, "") for gpu in gpus}) > 1 and "CUDA_DEVICE_ORDER" not in env:
        reason = "GPUs of several models: CUDA numbers the fastest first, nvidia-smi by the bus"
        yield JobVariable(name="CUDA_DEVICE_ORDER", value="PCI_BUS_ID", reason=reason, source="CUDA C++ Programming Guide")
    if len(gpus) > 1 and "NCCL_DEBUG" not in env:
        reason = "NCCL then says why it fails; it costs nothing"
        yield JobVariable(name="NCCL_DEBUG", value="WARN", reason=reason, source="NCCL user guide, NCCL_DEBUG")
    if not any(name in env for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")) and _torch_since(s, (2, 1)):
        reason = "less memory is lost to fragmentation where sizes change from step to step; measure it"
        source = "PyTorch, CUDA semantics: expandable_segments"
        yield JobVariable(
            name="PYTORCH_CUDA_ALLOC_CONF", value="expandable_segments:True", reason=reason, source=source, sure=False
        )


def _torch_since(s: Snapshot, first: tuple[int, int]) -> bool:
    torch = None if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) else s.python.torch
    return torch is not None and not isinstance(torch.version, Missing) and version(torch.version)[:2] >= first


def _allocator(s: Snapshot, paths: tuple[str, ...]) -> Iterator[JobVariable]:
    """Pays for CPU tensors; with GPUs it is for a person to measure."""
    if not paths or "LD_PRELOAD" in variables_told(s):
        return
    path = next((path for path in paths if "jemalloc" in path), paths[0])
    on_cpu = not isinstance(s.driver, Missing) and not known(s.driver.nvidia_devices, ())
    reason = "freed memory of CPU tensors is taken again instead of being given back to the kernel; measure it"
    yield JobVariable(name="LD_PRELOAD", value=path, reason=reason, source=TUNING_GUIDE, sure=on_cpu)
    if "jemalloc" in path:
        yield JobVariable(
            name="MALLOC_CONF", value=_JEMALLOC_CONF, reason="jemalloc keeps what was freed", source=TUNING_GUIDE, sure=on_cpu
        )
