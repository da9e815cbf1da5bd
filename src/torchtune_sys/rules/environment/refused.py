"""Variables with values that their readers refuse, that name what is not there, or that were left by another job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchtune_sys.knowledge.path_variables import READERS, wrapped
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.launchers import JOB_VARIABLES
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, container_told, interfaces_told, is_pasted
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.environment.common import environment, is_built_without, python_packages, seen
from torchtune_sys.rules.environment.values import integer_faults, process_group_faults, torch_logs_fault, whole
from torchtune_sys.rules.gates import release_of

_PORTS = 65535
_TRANSPORTS = ("TCP", "TCP_TLS", "UV", "IBVERBS")
_OF_TLS = ("GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY", "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT", "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE")


@rule(
    id="variable-refused",
    title="PyTorch refuses the value of an environment variable",
    severity=Severity.ERROR,
    fix=(Advice(text="correct the value, or unset the variable"),),
)
def variable_refused(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """MASTER_PORT is no port, RANK, WORLD_SIZE and LOCAL_RANK are no numbers or do not fit each other, TORCH_DISTRIBUTED_DEBUG has an unknown level, or
    GLOO_DEVICE_TRANSPORT names a transport that cannot be made; TORCH_LOGS names no log, or a switch or number of ProcessGroupNCCL
    (TORCH_NCCL_BLOCKING_WAIT, TORCH_NCCL_ASYNC_ERROR_HANDLING …) or of the compiler (TORCHINDUCTOR_COMPILE_THREADS …) is neither.

    Why it matters
    init_process_group fails at once ("port must have value from 0 to 65535", "invalid literal for int()", "must be OFF, INFO, or DETAIL",
    "unsupported gloo device", "Invalid value for environment variable"), or waits for ranks that are never started. With a wrong or empty
    TORCH_LOGS, import torch fails. A number of the compiler that is none ends the first optimizer that is made, and torch.compile.

    When to leave it
    torchrun and the batch system set MASTER_PORT, RANK and WORLD_SIZE anew for each rank; they pass on all others.

    References
    pytorch torch/distributed/rendezvous.py (env://), torch/csrc/distributed/c10d/debug.cpp, ProcessGroupGloo.cpp, GlooDeviceFactory.cpp
    torch/_logging/_internal.py (all tried with torch 2.13); torch/csrc/distributed/c10d/Utils.hpp (getCvarBool, getCvarInt)
    pytorch torch/_dynamo/config.py, torch/_inductor/config.py (tried with torch 2.13)
    """
    env = environment(s)
    port = env.get("MASTER_PORT", "")
    number = whole(port)
    if port and (number is None or not 0 <= number <= _PORTS):
        yield seen("MASTER_PORT", port, f"a number from 1 to {_PORTS}")
    ranks = {name: env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE") if env.get(name)}
    for name, value in ranks.items():
        if natural(value) is None:
            yield seen(name, value, "a whole number")
    rank, size = (natural(ranks.get(name, "")) for name in ("RANK", "WORLD_SIZE"))
    if rank is not None and size is not None and rank >= size:
        yield seen("RANK", str(rank), f"0 to {size - 1}" if size else "a WORLD_SIZE of 1 or more", f"with WORLD_SIZE={size}")
    level = env.get("TORCH_DISTRIBUTED_DEBUG", "")
    if level and level.upper() not in ("OFF", "INFO", "DETAIL"):
        yield seen("TORCH_DISTRIBUTED_DEBUG", level, "OFF, INFO or DETAIL")
    yield from _transport(env)
    if fault := torch_logs_fault(env["TORCH_LOGS"]) if "TORCH_LOGS" in env else "":
        yield seen("TORCH_LOGS", env["TORCH_LOGS"], "names of torch's logs, or unset", fault)
    yield from (seen(name, env[name], "a whole number, or unset") for name in integer_faults(env))
    if not is_built_without(s):
        yield from (seen(name, env[name], wanted) for name, wanted in process_group_faults(env))


def _transport(env: Mapping[str, str]) -> Iterator[Evidence]:
    transport = env.get("GLOO_DEVICE_TRANSPORT", "")
    lacking = [name for name in _OF_TLS if not env.get(name)]
    if transport and transport not in _TRANSPORTS:
        yield seen("GLOO_DEVICE_TRANSPORT", transport, "TCP, or unset")
    elif transport == "TCP_TLS" and lacking:
        yield seen("GLOO_DEVICE_TRANSPORT", transport, "TCP, or unset", f"without {', '.join(lacking)}")


@rule(
    id="variable-names-missing-file",
    title="An environment variable names a program, file, directory, package or backend that is not there",
    severity=Severity.WARNING,
    fix=(Advice(text="correct the path or unset the variable (in a container: mount what it names)"),),
)
def variable_names_missing_file(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A compiler (CC, CXX), a toolkit (CUDA_HOME, ROCM_HOME), Triton's tools, a plug-in of NCCL, a certificate bundle, or the directory of a log that libraries are
    told to write does not exist. A compiler of several words (ccache gcc) is none for Triton and torch.compile: both start a program of that
    whole name. A backend of Triton (TRITON_DEFAULT_BACKEND) is another maker's than torch's. Downloads are to go by hf_transfer, which is not
    installed. A cache (XDG_CACHE_HOME, TORCH_HOME, HF_HOME) is closed to this user: it may neither read nor write there.

    Why it matters
    The variable wins over what would be found without it: torch.compile, Triton and extensions that are compiled at run time end with "No
    such file or directory", downloads of models and data with "Could not find a suitable TLS CA certificate bundle". It comes about where an
    environment is taken to another host or into a container, or the module that set it was removed.

    When to leave it
    Nothing here compiles, or downloads, with these settings.

    References
    pytorch torch/utils/cpp_extension.py (CUDA_HOME, CXX), torch/_inductor/cpp_builder.py (CXX; the same in codecache.py of 2.0 to 2.4)
    Triton python/triton/runtime/build.py (CC, in all releases to 3.7.1), python/triton/runtime/driver.py (TRITON_DEFAULT_BACKEND, from 3.7 on)
    https://requests.readthedocs.io/en/latest/user/advanced/#ssl-cert-verification; https://docs.python.org/3/library/ssl.html (SSL_CERT_FILE)
    huggingface_hub file_download.py (http_get; releases before 1.0, for what does not go by hf_xet)
    """
    env, named = environment(s), need(s.session).named_paths
    others = [*_wrapped(s, env), *_backend(s, env), *_transfer(s, env), *_closed_caches(s, env)]
    if not named and not others:
        raise NotApplicable("no such variable is set")
    yield from others
    for name, there in named.items():
        path, reader = env.get(name, ""), READERS.get(name, "its reader")
        if isinstance(there, Missing):
            yield unsure(name, there)
        elif not there:
            yield seen(name, path, "what exists, or unset", f"no such file or directory ({reader})")


_WRAPPERS = {"CC": ("triton", (0,), "Triton"), "CXX": ("torch", (2,), "torch.compile")}
"""By variable: the package that starts a program of this name, its first release that does, and who says so."""


def _wrapped(s: Snapshot, env: Mapping[str, str]) -> Iterator[Evidence]:
    for name, (package, since, reader) in _WRAPPERS.items():
        value = env.get(name, "")
        if not wrapped(value):
            continue
        found = release_of(python_packages(s), package)
        if isinstance(found, Missing):
            yield unsure(name, found, "one program, or unset")
        elif found and version(found) >= since:
            yield seen(name, value, "one program, or unset", f"{reader} looks for a program of this whole name")


def _backend(s: Snapshot, env: Mapping[str, str]) -> Iterator[Evidence]:
    """Each of the two backends that Triton's wheel brings works for one kind of torch alone; what others bring is not judged."""
    name = "TRITON_DEFAULT_BACKEND"
    makers = {"nvidia": "nvidia", "amd": "amd", "cuda": "", "rocm": "", "hip": ""}
    if (maker := makers.get(env.get(name, ""))) is None:
        return
    triton = release_of(python_packages(s), "triton")
    if isinstance(triton, Missing):
        yield unsure(name, triton, "a backend for these GPUs, or unset")
        return
    torch = s.python if isinstance(s.python, Missing) else s.python.torch
    if not triton or version(triton) < (3, 7) or isinstance(torch, Missing):
        return
    own = "nvidia" if not isinstance(torch.cuda, Missing) else "amd" if not isinstance(torch.hip, Missing) else ""
    if own and maker != own:
        why = f"with this torch Triton's backend is {own}" if maker else "Triton has no backend of this name"
        yield seen(name, env[name], f"{own}, or unset", why)


_SWITCHED_ON = ("1", "ON", "YES", "TRUE")
"""As huggingface_hub reads its switches, in capitals (constants.py)."""


def _transfer(s: Snapshot, env: Mapping[str, str]) -> Iterator[Evidence]:
    name = "HF_HUB_ENABLE_HF_TRANSFER"
    if env.get(name, "").upper() not in _SWITCHED_ON or is_pasted(s):  # a report lists some packages
        return
    beside = s.python if isinstance(s.python, Missing) else s.python.others
    hub, fast, other = (release_of(beside, package) for package in ("huggingface-hub", "hf-transfer", "hf-xet"))
    if isinstance(hub, Missing) or isinstance(fast, Missing):
        return  # who knows whether anything here downloads
    without_xet = other == "" or env.get("HF_HUB_DISABLE_XET", "").upper() in _SWITCHED_ON
    if hub and version(hub) < (1,) and not fast and without_xet:
        yield seen(
            name, env[name], "0, or pip install hf_transfer", f"hf_transfer is not installed, and huggingface_hub {hub} refuses"
        )


_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")


def _closed_caches(s: Snapshot, env: Mapping[str, str]) -> Iterator[Evidence]:
    """Yield caches of no use to this user; one that may only be read is shared on purpose."""
    places = () if isinstance(s.storage, Missing) else s.storage.places
    closed = {place.path for place in places if place.role == "cache" and place.readable is False and place.writable is False}
    for name in _CACHES:
        if env.get(name) in closed:
            yield seen(name, env[name], "what this user may read, or unset", "this user may neither read nor write there")


@rule(
    id="rank-variables-left",
    title="The session has variables that belong to one rank, one host or another job",
    severity=Severity.ADVICE,
    superseded_by=("world-larger-than-started", "nccl-wrong-interface"),
    fix=(
        Advice(
            text="unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT before programs are started by hand, and of the "
            "others what is shown"
        ),
    ),
)
def rank_variables_left(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RANK and a WORLD_SIZE above 1, or torchrun's PET_NNODES, are set in an ordinary session: no batch system, torchrun or Kubernetes started it. Or
    what fits one communicator, host or job alone is set for all: NCCL_COMM_ID, a fixed NCCL_HOSTID, another host's VLLM_HOST_IP, Slurm's memory requests of two jobs.

    Why it matters
    A script that initialises torch.distributed when it finds these variables (Trainer, Accelerate, DeepSpeed, most examples) becomes one rank
    of a job that does not exist, and waits for the others until the rendezvous times out. torchrun takes options that are not given from PET_….
    With NCCL_COMM_ID every group of ranks meets at this one address, where the first rank of each must listen: groups mix, or fail if it is not
    that rank's host. With one NCCL_HOSTID on several hosts NCCL takes them for one ("Duplicate GPU detected"). srun refuses to start with
    SLURM_MEM_PER_CPU beside SLURM_MEM_PER_NODE, as where a job is submitted from within another.

    When to leave it
    The ranks of this job are started one by one, by hand or by a launcher of one's own.

    References
    https://docs.pytorch.org/docs/stable/distributed.html (environment variable initialization)
    https://docs.pytorch.org/docs/stable/elastic/run.html (variables that torchrun sets); torch/distributed/argparse_util.py (PET_)
    NVIDIA/nccl src/bootstrap.cc, src/init.cc (NCCL_COMM_ID: bootstrapCreateRoot on the first rank), src/misc/utils.cc (NCCL_HOSTID); the
    user guide of 2.30 has neither among its settings
    https://github.com/vllm-project/vllm/issues/8908 (VLLM_HOST_IP in a start file that all hosts share)
    Slurm src/srun/libsrun/opt.c (SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive)
    """
    env = environment(s)
    others = [*_for_one_alone(s, env), *_of_two_jobs(env)]
    yield from others
    container = container_told(s)
    why = ""
    if "RANK" not in env and "PET_NNODES" not in env:
        why = "no such variable is set"
    elif is_pasted(s):
        why = "pasted variables are those of a job"
    elif container or any(
        name in env for name in (*JOB_VARIABLES, "KUBERNETES_SERVICE_HOST", "TORCHELASTIC_RUN_ID", "GROUP_RANK")
    ):
        why = "a launcher, a batch system or a container's owner set them"
    if not why:
        yield from _of_a_launcher(s, env)
    elif not others:
        raise NotApplicable(why)


def _of_a_launcher(s: Snapshot, env: Mapping[str, str]) -> Iterator[Evidence]:
    size = natural(env.get("WORLD_SIZE", "")) or 0
    if "RANK" in env and size > 1:
        yield seen("RANK", env["RANK"], "unset", f"rank {env['RANK']} of {size}, which nobody else is seen to start")
    nodes = natural(env.get("PET_NNODES", "").partition(":")[0]) or 0
    if nodes > 1 and s.intent.nodes is None:
        yield seen("PET_NNODES", env["PET_NNODES"], "unset", f"torchrun waits for {nodes} hosts where no --nnodes is given")


def _for_one_alone(s: Snapshot, env: Mapping[str, str]) -> Iterator[Evidence]:
    if env.get("NCCL_COMM_ID"):
        yield seen("NCCL_COMM_ID", env["NCCL_COMM_ID"], "unset", "every group of ranks meets at this one address")
    host = env.get("NCCL_HOSTID", "")
    name = "" if isinstance(s.system, Missing) else known(s.system.hostname, "")
    if host and name and (s.intent.nodes or 1) > 1 and name not in host:
        yield seen("NCCL_HOSTID", host, "another on each host, or unset", "NCCL takes hosts with the same for one")
    if _is_of_another_host(s, address := env.get("VLLM_HOST_IP", "")):
        yield seen("VLLM_HOST_IP", address, "an address of this host, or unset", "no interface here has it")


def _is_of_another_host(s: Snapshot, address: str) -> bool:
    """Return whether an address is none of this host's; in a container it may be the address of the host around it."""
    listed = interfaces_told(s)
    own = {item.address for interface in listed for item in known(interface.addresses, ())}
    inside = isinstance(s.system, Missing) or known(s.system.container, "unknown") != ""
    return bool(address and own) and not inside and _ADDRESS.fullmatch(address) is not None and address not in own


_ADDRESS = pattern(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


_FIRST_OWN_STEP = 0xFFFFFFF0
"""Steps from this number on are Slurm's own, as that of an interactive shell (slurm.h, SLURM_MAX_NORMAL_STEP_ID): srun is called there, as in a batch script."""


def _of_two_jobs(env: Mapping[str, str]) -> Iterator[Evidence]:
    step = natural(env.get("SLURM_STEP_ID", ""))
    if step is not None and step < _FIRST_OWN_STEP:
        return  # srun has started this already
    asked = [name for name in ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE") if env.get(name)]
    if len(asked) > 1:
        yield seen(asked[0], env[asked[0]], "one of them", f"beside {asked[1]}={env[asked[1]]}, with which srun refuses to start")
