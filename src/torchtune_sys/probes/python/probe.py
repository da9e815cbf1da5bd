"""The interpreter one trains with, its packages, its torch, and the CUDA around it. torch is imported only under ``--live``, in a child."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtune_sys.formats.mounts import carrier, carrying
from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model import codec
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.python import NOT_LIVE, Carrier, Distribution, LiveTorch, LoaderChoice, PythonFacts, Torch
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, fact, known, need
from torchtune_sys.probes.python import cuda_libraries, interpreter
from torchtune_sys.probes.python.distributions import Scan, scan
from torchtune_sys.probes.storage.mounts import read_mounts


def probe(host: Host, intent: Workload) -> PythonFacts:
    env = host.env()
    executable = interpreter.chosen(host, env, intent.python)
    answer = executable if isinstance(executable, Missing) else interpreter.ask(host, executable)
    facts = _with_packages(host, interpreter.facts(executable, answer))
    facts = _with_byte_code(host, facts)
    if isinstance(facts.torch, Torch):
        facts = msgspec.structs.replace(
            facts, cut_libraries=_cut_libraries(host, facts.torch.location), lost_parts=_lost_parts(host, facts.torch.location)
        )
    facts = _with_surroundings(host, facts, env, "" if isinstance(answer, Missing) else answer.abiflags)
    if intent.live and isinstance(executable, str):
        return with_live(facts, live(host, executable))
    return facts


def _with_packages(host: Host, facts: PythonFacts) -> PythonFacts:
    if isinstance(facts.sys_path, Missing):
        nothing = facts.sys_path
        unread = dict.fromkeys(
            ("distributions", "leftovers", "torch", "carrier", "conda", "has_pip", "externally_managed"), nothing
        )
        return msgspec.structs.replace(facts, **unread)
    seen = scan(host, facts.sys_path, facts.prefix)
    seen = msgspec.structs.replace(seen, refused=tuple(entry for entry in seen.refused if not _passed_over(host, entry, facts)))
    conda = True if isinstance(facts.prefix, Missing) else host.exists(f"{facts.prefix}/conda-meta")
    refused = next(iter(seen.refused), None)
    unlisted = refused is not None and not seen.distributions
    return msgspec.structs.replace(
        facts,
        distributions=refused if unlisted and refused is not None else seen.distributions,
        others=refused if unlisted and refused is not None else seen.others,
        entries_gone=seen.gone,
        leftovers=seen.leftovers,
        torch=(torch := _beside(host, facts, torch_of(host, seen))),
        hiding=seen.hiding,
        lost_backends=seen.lost_backends,
        hiding_here=_hiding_here(host, facts.sys_path),
        carrier=torch if isinstance(torch, Missing) else _carrier(host, torch.location),
        conda=conda,
        has_pip=seen.has_pip,
        externally_managed=_externally_managed(host, facts),
    )


def _externally_managed(host: Host, facts: PythonFacts) -> Fact[bool]:
    """PEP 668: the file stands beside the standard library, and counts outside virtual environments."""
    if isinstance(facts.prefix, Missing) or isinstance(facts.version, Missing):
        return Missing(Why.NOT_RECORDED, "interpreter", "it does not say where its library is")
    return facts.prefix == facts.base_prefix and host.exists(
        f"{_standard_library(facts.prefix, facts.version, facts)}/EXTERNALLY-MANAGED"
    )


def _standard_library(prefix: str, version: str, facts: PythonFacts) -> str:
    """Return where an interpreter of this version keeps its library: a free-threaded one in a directory of its own (PEP 703)."""
    return f"{prefix}/lib/python{'.'.join(version.split('.')[:2])}{'t' if facts.free_threaded is True else ''}"


def _hiding_here(host: Host, sys_path: tuple[str, ...]) -> Fact[tuple[str, ...]]:
    here = host.ask(queries.CWD)
    if not isinstance(here, str):
        return here if isinstance(here, Missing) else Missing(Why.UNPARSED, queries.CWD, "not a path")
    if here in (entry.rstrip("/") for entry in sys_path):
        return Missing(Why.ABSENT, here, "it is on sys.path anyway")
    found = host.ask(f"{queries.MODULE_FILES}:{here}")
    if isinstance(found, Missing):
        unasked = not host.live and absent_or_unrecorded(found)
        return Missing(Why.ABSENT, here, "recorded by a release that did not look") if unasked else found
    return tuple(f"{here.rstrip('/')}/{name}" for name in found) if isinstance(found, list) else ()


def _beside(host: Host, facts: PythonFacts, torch: Fact[Torch]) -> Fact[Torch]:
    """Return why an environment's torch is not found: its interpreter does not know that it is one, as pyvenv.cfg is not there."""
    if not isinstance(torch, Missing) or torch.why is not Why.ABSENT:
        return torch
    if isinstance(facts.executable, Missing) or isinstance(facts.prefix, Missing) or isinstance(facts.version, Missing):
        return torch
    place = facts.executable.rpartition("/")[0].rpartition("/")[0]
    packages = f"{_standard_library(place, facts.version, facts)}/site-packages"
    if place in ("", facts.prefix) or host.exists(f"{packages}/torch/version.py") is not True:
        return torch
    if host.exists(f"{place}/pyvenv.cfg") is False:
        return Missing(
            Why.FAILED,
            f"{packages}/torch",
            f"{place} is no environment any more: it has no pyvenv.cfg, and its packages are not found",
        )
    return Missing(
        Why.FAILED, f"{packages}/torch", f"Python looks for packages in {facts.prefix} and not in {place} (PYTHONHOME)"
    )


def _passed_over(host: Host, refused: Missing, facts: PythonFacts) -> bool:
    """Tell whether the interpreter passes over an entry of sys.path, too, because this user may not list it (importlib's FileFinder does).

    An environment of its own that is closed is a reason, not an absence; and root may be refused what the user who is judged can read.
    """
    who = host.ask(queries.UID)
    if refused.why is not Why.DENIED or isinstance(who, Missing) or who.get("uid") == 0:
        return False
    own = [place for place in (facts.prefix, facts.base_prefix) if isinstance(place, str)]
    return not any(f"{refused.source}/".startswith(f"{place.rstrip('/')}/") for place in own)


def _with_byte_code(host: Host, facts: PythonFacts) -> PythonFacts:
    """PEP 3147: ``__pycache__/NAME.TAG.pyc``, with the implementation and the version in the tag; PEP 703 adds a "t"."""
    unread = next((fact for fact in (facts.torch, facts.version, facts.implementation) if isinstance(fact, Missing)), None)
    if unread is not None or isinstance(facts.torch, Missing):
        return msgspec.structs.replace(facts, byte_code=unread, byte_code_writable=unread)
    tag = f"{facts.implementation}-{''.join(str(facts.version).split('.')[:2])}{'t' if facts.free_threaded is True else ''}"
    folder = facts.torch.location
    there = host.exists(f"{folder}/__pycache__/__init__.{tag}.pyc")
    writable: Fact[bool] = Missing(Why.ABSENT, folder, "the byte code is there")
    if there is False:
        answer = host.ask(f"{queries.ACCESS}:{folder}")
        writable = answer.get("write") is True if isinstance(answer, dict) else _unreadable(answer)
    return msgspec.structs.replace(facts, byte_code=there, byte_code_writable=there if isinstance(there, Missing) else writable)


def _lost_parts(host: Host, package: str) -> tuple[str, ...]:
    found = host.ask(f"{queries.LOST_PARTS}:{package}")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _cut_libraries(host: Host, package: str) -> Fact[tuple[str, ...]]:
    folder = f"{package}/lib"
    answer = host.ask(f"{queries.CUT_LIBRARIES}:{folder}")
    if isinstance(answer, Missing):
        return answer if host.live else Missing(Why.ABSENT, folder, "recorded by a release that did not look")
    rows = [row for row in answer if isinstance(row, list) and len(row) == 3] if isinstance(answer, list) else []
    return tuple(
        f"lib/{name} has {size:,} bytes" + (f" of at least {least:,}" if least < 1 << 60 else ", all zero")
        for name, size, least in rows
    )


def _unreadable(answer: object) -> Missing:
    return answer if isinstance(answer, Missing) else Missing(Why.UNPARSED, queries.ACCESS, "not an answer about access")


@fact
def _carrier(host: Host, directory: str) -> Fact[Carrier]:
    mounts = need(read_mounts(host))
    real = host.real(directory)
    mount = carrying(mounts, directory if isinstance(real, Missing) else real)
    if mount is None:
        return Missing(Why.ABSENT, "/proc/self/mountinfo", f"no mount carries {directory}")
    kind = carrier(mount.filesystem, mount.source)
    return Carrier(mount_point=mount.point, filesystem=mount.filesystem, kind=kind, noexec="noexec" in mount.options)


def _with_surroundings(host: Host, facts: PythonFacts, env: Fact[dict[str, str]], abiflags: str) -> PythonFacts:
    variables = known(env, {})
    folders = cuda_libraries.library_path(variables)
    nvcc_path, nvcc = cuda_libraries.nvcc(host, variables)
    toolkits = cuda_libraries.toolkits(host)
    return msgspec.structs.replace(
        facts,
        toolkits=toolkits,
        ptxas=cuda_libraries.with_ptxas(host, toolkits),
        nvcc=nvcc,
        nvcc_path=nvcc_path,
        library_path=env if isinstance(env, Missing) else folders,
        shadowing=env if isinstance(env, Missing) else cuda_libraries.libraries(host, folders),
        loader=_loader(host, facts, env),
        **_build_libraries(host, facts, env),
        headers=_headers(host, facts, abiflags),
        compiler=env if isinstance(env, Missing) else _compiler(host, variables),
    )


def _loader(host: Host, facts: PythonFacts, env: Fact[dict[str, str]]) -> Fact[tuple[LoaderChoice, ...]]:
    if isinstance(facts.torch, Missing):
        return facts.torch
    if isinstance(facts.torch.cuda, Missing):
        return facts.torch.cuda
    from torchtune_sys.probes.python.torch_libraries import predict  # a millisecond that only a CUDA build pays

    return predict(host, facts, env)


def _build_libraries(host: Host, facts: PythonFacts, env: Fact[dict[str, str]]) -> dict[str, Fact[Any]]:
    """Read only where Triton, DeepSpeed or bitsandbytes would use them."""
    there = {item.name: item for item in reversed(known(facts.distributions, ()))}
    triton, deepspeed = there.get("triton") or there.get("pytorch-triton"), there.get("deepspeed")
    quantised = there.get("bitsandbytes")
    found: dict[str, Fact[Any]] = {}
    if triton or deepspeed or quantised:
        from torchtune_sys.probes.python import build_libraries

        if triton:
            found["linkable"] = env if isinstance(env, Missing) else build_libraries.linkable(host, env, triton)
        if deepspeed:
            found["deepspeed_operators"] = build_libraries.deepspeed_operators(host, deepspeed)
        if quantised:
            found["bitsandbytes_builds"] = build_libraries.bitsandbytes_builds(host, quantised)
    return found


def _headers(host: Host, facts: PythonFacts, abiflags: str) -> Fact[bool]:
    if isinstance(facts.version, Missing):
        return facts.version
    if isinstance(facts.base_prefix, Missing):
        return facts.base_prefix
    minor = ".".join(facts.version.split(".")[:2])
    return host.exists(f"{facts.base_prefix.rstrip('/')}/include/python{minor}{abiflags}/Python.h")


def _compiler(host: Host, env: dict[str, str]) -> Fact[str]:
    """Source: _build in triton/runtime/build.py: CC, else gcc, else clang."""
    named = env.get("CC", "").split()[:1]
    found = (
        named[0]
        if named and named[0].startswith("/")
        else next(interpreter.which(host, env, (*named, "gcc", "clang", "cc")), None)
    )
    return found or Missing(Why.ABSENT, "PATH", "no gcc, clang or cc on PATH")


def torch_of(host: Host, seen: Scan) -> Fact[Torch]:
    """Return the first torch on sys.path, from the file that its build wrote."""
    failed: Missing | None = None
    for entry in seen.torch_entries:
        path = f"{entry}/torch/version.py"
        text = host.text(path)
        if not isinstance(text, Missing):
            return parse_torch(text, entry, seen.distributions)
        if failed is None and text.why is not Why.ABSENT:
            failed = text
    if failed is not None:
        return failed
    listed = next((item for item in seen.distributions if item.name == "torch"), None)
    if listed is not None:
        return Missing(Why.FAILED, f"{listed.location}/torch", f"pip lists torch {listed.version}, and its package is not there")
    return seen.refused[0] if seen.refused else Missing(Why.ABSENT, "sys.path", "torch is not installed")


_LONGEST_VALUE = 200
"""Characters of a value in torch/version.py: a version, or a commit."""


def parse_version_py(text: str) -> dict[str, str | None]:
    """Return the values that torch/version.py assigns; None where it says None.

    >>> found = parse_version_py("__version__ = '2.13.0+cpu'\\ndebug = False\\ncuda: Optional[str] = None\\nhip: Optional[str] = '6.1'")
    >>> found["__version__"], found["debug"], found["cuda"], found["hip"]
    ('2.13.0+cpu', 'False', None, '6.1')
    """
    found: dict[str, str | None] = {}
    for line in text.splitlines()[:200]:
        name, equals, value = line.partition("=")
        name = name.partition(":")[0].strip()
        if equals and name.isidentifier() and len(value) <= _LONGEST_VALUE:
            value = value.partition("#")[0].strip()
            found[name] = None if value == "None" else value.strip("'\"")
    return found


def parse_torch(text: str, entry: str, distributions: tuple[Distribution, ...]) -> Fact[Torch]:
    source = f"{entry}/torch/version.py"
    values = parse_version_py(text)
    version = values.get("__version__")
    if not version or not version[0].isdigit():
        return Missing(Why.UNPARSED, source, "it names no version")
    cuda = values.get("cuda")
    return Torch(
        version=version,
        location=f"{entry}/torch",
        cuda=cuda or Missing(Why.ABSENT, source, "not a CUDA build"),
        hip=values.get("hip") or Missing(Why.ABSENT, source, "not a ROCm build"),
        xpu=values.get("xpu") or Missing(Why.ABSENT, source, "not a build for Intel GPUs"),
        debug=values.get("debug") == "True" if "debug" in values else Missing(Why.UNPARSED, source, "it does not say"),
        arch_list=Missing(Why.NOT_RECORDED, source, "only torch itself tells it", "--live"),
        nccl=_library(distributions, "nvidia-nccl", cuda, "nccl"),
        cudnn=_library(distributions, "nvidia-cudnn", cuda, "cudnn"),
    )


def _library(distributions: tuple[Distribution, ...], wheel: str, cuda: str | None, conda: str) -> Fact[str]:
    if not cuda:
        return Missing(Why.ABSENT, wheel, "not a CUDA build")
    wanted = (f"{wheel}-cu{cuda.partition('.')[0]}", wheel)
    found = next((item for item in distributions if item.name in wanted or (item.build and item.name == conda)), None)
    return (
        found.version
        if found
        else Missing(Why.NOT_RECORDED, wheel, "no such package: it is linked into torch, or lies elsewhere", "--live")
    )


def live(host: Host, executable: str) -> Fact[LiveTorch]:
    """Return what torch said of itself when it was imported, or why it could not be."""
    found = host.ask(f"{queries.LIVE_TORCH}:{executable}")
    if isinstance(found, dict) and isinstance(found.get("import_error"), str):
        return Missing(Why.FAILED, "import torch", found["import_error"])
    return codec.as_fact(found, LiveTorch, queries.LIVE_TORCH)


def with_live(facts: PythonFacts, seen: Fact[LiveTorch]) -> PythonFacts:
    """Return the facts with what torch said of itself, which overrules what its files suggest."""
    absent = isinstance(facts.torch, Missing) and facts.torch.why is Why.ABSENT
    facts = msgspec.structs.replace(facts, live=NOT_LIVE if absent and isinstance(seen, Missing) else seen)
    if isinstance(seen, Missing) or isinstance(facts.torch, Missing):
        return facts
    better = {name: value for name in ("arch_list", "nccl", "cudnn") if not isinstance(value := getattr(seen, name), Missing)}
    return msgspec.structs.replace(
        facts, torch=msgspec.structs.replace(facts.torch, version=seen.version, source="live", **better)
    )
