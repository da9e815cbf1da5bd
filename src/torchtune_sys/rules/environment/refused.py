"""Variables with values that their readers refuse, that name what is not there, or that were left by another job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchtune_sys.knowledge.path_variables import READERS
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.launchers import JOB_VARIABLES
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Rule, Severity, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, is_pasted
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need
from torchtune_sys.rules.environment.common import environment, seen
from torchtune_sys.rules.environment.values import integer_faults, process_group_faults, torch_logs_fault, whole

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
    if not _without_nccl(s):
        yield from (seen(name, env[name], wanted) for name, wanted in process_group_faults(env))


def _without_nccl(s: Snapshot) -> bool:
    """Return whether the judged torch is known to be built for the CPU alone, where nothing reads the variables of ProcessGroupNCCL."""
    build = s.python if isinstance(s.python, Missing) else s.python.torch
    return not isinstance(build, Missing) and absent(build.cuda) and isinstance(build.hip, Missing)


def _transport(env: Mapping[str, str]) -> Iterator[Evidence]:
    transport = env.get("GLOO_DEVICE_TRANSPORT", "")
    lacking = [name for name in _OF_TLS if not env.get(name)]
    if transport and transport not in _TRANSPORTS:
        yield seen("GLOO_DEVICE_TRANSPORT", transport, "TCP, or unset")
    elif transport == "TCP_TLS" and lacking:
        yield seen("GLOO_DEVICE_TRANSPORT", transport, "TCP, or unset", f"without {', '.join(lacking)}")


@rule(
    id="variable-names-missing-file",
    title="An environment variable names a program, file or directory that is not there",
    severity=Severity.WARNING,
    fix=(Advice(text="correct the path or unset the variable (in a container: mount what it names)"),),
)
def variable_names_missing_file(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A compiler (CC, CXX), a toolkit (CUDA_HOME, ROCM_HOME), Triton's tools, a certificate bundle, or the directory of a log that libraries are
    told to write does not exist.

    Why it matters
    The variable wins over what would be found without it: torch.compile, Triton and extensions that are compiled at run time end with "No
    such file or directory", downloads of models and data with "Could not find a suitable TLS CA certificate bundle". It comes about where an
    environment is taken to another host or into a container, or the module that set it was removed.

    When to leave it
    Nothing here compiles, or downloads, with these settings.

    References
    pytorch torch/utils/cpp_extension.py (CUDA_HOME, CXX), torch/_inductor/cpp_builder.py (CXX); Triton python/triton/runtime/build.py (CC)
    https://requests.readthedocs.io/en/latest/user/advanced/#ssl-cert-verification; https://docs.python.org/3/library/ssl.html (SSL_CERT_FILE)
    """
    env, named = environment(s), need(s.session).named_paths
    if not named:
        raise NotApplicable("no such variable is set")
    for name, there in named.items():
        path, reader = env.get(name, ""), READERS[name]
        if isinstance(there, Missing):
            yield unsure(name, there)
        elif not there:
            yield seen(name, path, "what exists, or unset", f"no such file or directory ({reader})")


@rule(
    id="rank-variables-left",
    title="The session has the variables of a rank, and no launcher set them",
    severity=Severity.ADVICE,
    superseded_by=("world-larger-than-started",),
    fix=(
        Advice(
            text="unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT before programs are started by hand"
        ),
    ),
)
def rank_variables_left(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RANK, and a WORLD_SIZE above 1, are set in an ordinary session: no batch system, torchrun or Kubernetes started it.

    Why it matters
    A script that initialises torch.distributed when it finds these variables (Trainer, Accelerate, DeepSpeed, most examples) becomes one rank
    of a job that does not exist, and waits for the others until the rendezvous times out.

    When to leave it
    The ranks of this job are started one by one, by hand or by a launcher of one's own.

    References
    https://docs.pytorch.org/docs/stable/distributed.html (environment variable initialization)
    https://docs.pytorch.org/docs/stable/elastic/run.html (variables that torchrun sets)
    """
    env = environment(s)
    size = natural(env.get("WORLD_SIZE", "")) or 0
    if "RANK" not in env:
        raise NotApplicable("RANK is not set")
    container = "" if isinstance(s.system, Missing) else known(s.system.container, "")
    if is_pasted(s):
        raise NotApplicable("pasted variables are those of a job")
    if container or any(name in env for name in (*JOB_VARIABLES, "KUBERNETES_SERVICE_HOST", "TORCHELASTIC_RUN_ID", "GROUP_RANK")):
        raise NotApplicable("a launcher, a batch system or a container's owner set them")
    if size > 1:
        yield seen("RANK", env["RANK"], "unset", f"rank {env['RANK']} of {size}, which nobody else is seen to start")


RULES: tuple[Rule, ...] = (variable_refused, variable_names_missing_file, rank_variables_left)
