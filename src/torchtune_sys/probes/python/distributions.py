"""Installed distributions, from the names of directories on sys.path; nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from torchtune_sys.formats import requirements
from torchtune_sys.formats.python_modules import hiding as hiding_in
from torchtune_sys.host.base import Host
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.python import NOT_READ, OF_ONE_TORCH, Distribution, normalised
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, known

_NAMES = frozenset(
    (
        "numpy", "mkl", "intel-openmp", "scipy", "apex", "xformers", "flash-attn", "bitsandbytes", "deepspeed", "vllm", "accelerate",
        "transformers", "nccl", "cudnn", "cpuonly", "cudatoolkit", "libcublas", "libnvjitlink", "pytorch", "pytorch-gpu", "pytorch-cpu",
        "tensorflow", "jax", "jaxlib", "ninja", "lightning", "sglang", "sgl-kernel", "sglang-kernel", "onnxruntime-gpu", "transformer-engine", "vllm-nccl-cu11",
        "vllm-nccl-cu12", "intel-extension-for-pytorch", "habana-torch-plugin", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x",
        "natten", "detectron2", "pyg-lib", "flash-attn-3", "mamba-ssm", "causal-conv1d", "flashinfer-python", "flashinfer-jit-cache",
        "transformer-engine-cu11", "transformer-engine-cu12", "transformer-engine-cu13",
    )
)  # fmt: skip
_PREFIXES = ("torch", "nvidia-", "cuda-", "triton", "pytorch-triton", "pytorch-cuda", "pytorch-lightning", "pytorch-mutex")
_READ = frozenset(
    ("torch", "cuda-toolkit", "torchvision", "torchaudio", "torchtext", "vllm", "xformers", "sgl-kernel", "sglang-kernel")
)
"""Those of which the requirements are judged; reading metadata costs more than listing a directory."""


_OTHERS = frozenset(("typing-extensions", "sympy", "huggingface-hub", "hf-transfer", "hf-xet"))
"""Those whose versions matter to torch, or to downloads, where they are too old or lacking; not what tells one environment from another."""
_METADATA = (".dist-info", ".egg-info")
_LONGEST_VERSION = 200
"""Characters; those of torch's own builds from source, with the commit and the date, have 40."""
_MOST_DISTRIBUTIONS, _MOST_HIDING = 1000, 20
"""Of all entries together, and of one. Large environments have some 150 packages that matter here."""


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    distributions: tuple[Distribution, ...]
    others: tuple[Distribution, ...]
    leftovers: tuple[str, ...]
    torch_entries: tuple[str, ...]
    """sys.path entries that hold something called torch, in order."""
    refused: tuple[Missing, ...]
    """Entries that could not be listed."""
    gone: tuple[str, ...] = ()
    has_pip: Fact[bool] = NOT_READ
    hiding: tuple[str, ...] = ()
    """Files in entries before Python's own modules (PYTHONPATH), with a name of one that torch imports."""
    lost_backends: tuple[str, ...] = ()


def matters(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)


def scan(host: Host, sys_path: Iterable[str], prefix: Fact[str]) -> Scan:
    found: list[Distribution] = []
    leftovers: list[str] = []
    torch_entries: list[str] = []
    refused: list[Missing] = []
    gone: list[str] = []
    hiding: list[str] = []
    sys_path = tuple(sys_path)
    first = _before_the_library(sys_path)
    listed: dict[str, tuple[str, ...]] = {}
    for entry in _places(sys_path):
        names = host.names(entry)
        if isinstance(names, Missing):
            refused += [names] if not absent_or_unrecorded(names) else []
            gone += [entry] if names.why is Why.ABSENT and host.exists(entry) is not True else []  # an egg is a file
            continue
        listed[entry] = names
        torch_entries += [entry] if "torch" in names else []
        hiding += _hiding(host, entry, names) if entry in first else []
        leftovers += [f"{entry}/{name}" for name in names if name[:1] == "~" and _is_leftover(name)]
        told = list(islice(_in_entry(host, entry, names), _MOST_DISTRIBUTIONS + 1 - len(found)))
        found += told
        if len(found) > _MOST_DISTRIBUTIONS:
            refused.append(
                Missing(Why.UNPARSED, entry, f"it holds more than {_MOST_DISTRIBUTIONS:,} packages that matter to torch")
            )
            break
    hiding += _hiding_required({entry: listed[entry] for entry in first if entry in listed}, found)
    return Scan(
        others=tuple(item for item in found if item.name in _OTHERS),
        distributions=(
            *(item for item in found if item.name not in _OTHERS),
            *([] if isinstance(prefix, Missing) else in_conda(host, prefix)),
        ),
        leftovers=tuple(leftovers),
        torch_entries=tuple(torch_entries),
        refused=tuple(refused),
        gone=tuple(gone),
        has_pip=_has_pip(listed, refused),
        hiding=tuple(hiding),
        lost_backends=() if refused else tuple(islice(_lost_backends(host, listed), _MOST_HIDING)),
    )


def _lost_backends(host: Host, listed: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the extensions that ``import torch`` starts (entry points of the group torch.backends) whose module is in no entry. Each that there is has torch
    in its name; others are not opened. A module that is installed in development mode may be anywhere."""
    every = [name for names in listed.values() for name in names]
    there = {name.partition(".")[0] for name in every if "." not in name or name.endswith((".py", ".so"))}
    if any("editable" in name for name in every):
        return
    metadata = [
        (entry, name) for entry, names in listed.items() for name in names if "torch" in name and name.endswith(_METADATA)
    ]
    for entry, folder in metadata[:_MOST_DISTRIBUTIONS]:
        text = host.text(f"{entry}/{folder}/entry_points.txt")
        for name, module in () if isinstance(text, Missing) else parse_backends(text):
            if module.partition(".")[0] not in there:
                yield scrubbed(f"{name} of {folder.rpartition('.')[0]}, module {module}")


def parse_backends(text: str) -> list[tuple[str, str]]:
    """Return name and module of each extension in an entry_points.txt that torch loads by itself.

    >>> parse_backends("[console_scripts]\\na = b:c\\n[torch.backends]\\nnpu = torch_npu:_autoload\\n\\n[x]\\ny = z\\n")
    [('npu', 'torch_npu')]
    """
    found, section = [], ""
    for line in map(str.strip, text.splitlines()[:1000]):
        section = line if line.startswith("[") else section
        name, _, value = line.partition("=")
        module = value.partition(":")[0].partition("[")[0].strip()
        if section == "[torch.backends]" and module and not line.startswith(("#", ";")):
            found.append((name.strip(), module))
    return found


def _has_pip(listed: Mapping[str, tuple[str, ...]], refused: list[Missing]) -> Fact[bool]:
    if any(name.startswith("pip-") and name.endswith(_METADATA) for names in listed.values() for name in names):
        return True
    return next(iter(refused), False if listed else Missing(Why.NOT_RECORDED, "sys.path", "no entry of it was listed"))


def _before_the_library(sys_path: tuple[str, ...]) -> tuple[str, ...]:
    own = next((at for at, entry in enumerate(sys_path) if entry.rpartition("/")[2].startswith("python3")), 0)
    return tuple(entry.rstrip("/") for entry in sys_path[:own])


def _hiding(host: Host, entry: str, names: Iterable[str]) -> list[str]:
    found = hiding_in(names, lambda name: host.exists(f"{entry}/{name}"))
    return [f"{entry}/{name}" for name in islice(found, _MOST_HIDING)]


def _hiding_required(listed: Mapping[str, tuple[str, ...]], found: Iterable[Distribution]) -> Iterator[str]:
    """Yield files with the name of a package that torch requires (sympy.py), which are not such a package's own (typing_extensions.py)."""
    asked = {line for item in found if item.name == "torch" for line in item.requires if "extra ==" not in line}
    modules = {requirements.parse(line).name.replace("-", "_") for line in asked}
    for entry, names in listed.items():
        own = {parse_folder(name)[0].replace("-", "_") for name in names if name.endswith(_METADATA)}
        there = {name.removesuffix(".py") for name in names if name.endswith(".py")}
        yield from (f"{entry}/{name}.py" for name in sorted(there & modules - own)[:_MOST_HIDING])


def _places(sys_path: Iterable[str]) -> list[str]:
    """Return the directories that may hold distributions: the standard library's own ones hold none."""
    entries = [entry.rstrip("/") for entry in sys_path if entry.startswith("/") and len(entry) < 4096]
    return [
        entry
        for entry in dict.fromkeys(entries)
        if not entry.endswith((".zip", "/lib-dynload")) and not entry.rpartition("/")[2].startswith("python3.")
    ][:200]


def _in_entry(host: Host, entry: str, names: Iterable[str]) -> Iterator[Distribution]:
    for folder in names:
        if folder.endswith(_METADATA):
            name, version = parse_folder(folder)
            if matters(name) or name in _OTHERS:
                yield _distribution(host, entry, folder, name, version)


def parse_folder(folder: str) -> tuple[str, str]:
    """Return the normalised name and version in the name of a metadata directory; the version is ``""`` in a develop install.

    >>> parse_folder("nvidia_cudnn_cu12-9.1.0.70.dist-info"), parse_folder("torch-1.9.0-py3.8.egg-info"), parse_folder("torch.egg-info")
    (('nvidia-cudnn-cu12', '9.1.0.70'), ('torch', '1.9.0'), ('torch', ''))
    """
    stem = folder.rpartition(".")[0]
    name, _, rest = stem.partition("-")
    return normalised(name), rest.partition("-")[0]


def _distribution(host: Host, entry: str, folder: str, name: str, version: str) -> Distribution:
    place = f"{entry}/{folder}"
    wheel = folder.endswith(".dist-info")
    headers: dict[str, list[str]] = {}
    if name in _READ or not version:
        text = host.text(f"{place}/METADATA" if wheel else f"{place}/PKG-INFO")
        headers = {} if isinstance(text, Missing) else parse_headers(text)
    tags: list[str] = []
    if name == "torch" and wheel:
        text = host.text(f"{place}/WHEEL")
        tags = [] if isinstance(text, Missing) else parse_headers(text).get("tag", [])
    record = host.text(f"{place}/RECORD") if wheel and name.startswith("nvidia-") else ""
    sizes = {} if isinstance(record, Missing) else library_sizes(record)
    repaired = wheel and name in _REPAIRED and _is_repaired(host.text(f"{place}/WHEEL"))
    gone = (f"{name}.libs",) if repaired and host.exists(f"{entry}/{name}.libs") is False else ()
    release = version or next(iter(headers.get("version", ())), "")
    if wheel and name in OF_ONE_TORCH and "+" not in release:
        release += _local_part(host.text(f"{place}/direct_url.json"), release)
    return Distribution(
        name=name,
        version=scrubbed(release)[:_LONGEST_VERSION],
        location=entry,
        weighed=bool(sizes) or repaired,
        altered=(*gone, *(path for path, size in sizes.items() if _differs(host, f"{entry}/{path}", size))),
        requires=tuple(map(scrubbed, headers.get("requires-dist", ()))),
        requires_python=next(iter(headers.get("requires-python", ())), ""),
        tags=tuple(tags),
    )


def _local_part(origin: Fact[str], release: str) -> str:
    """Return the local part of the version in the name of the file that a wheel was installed from (direct_url.json); ``""`` where it has none.

    >>> _local_part('{"archive_info": {}, "url": "https://x.example/a/flash_attn-2.7.4%2Bcu12torch2.6-cp312-cp312-linux_x86_64.whl"}', "2.7.4")
    '+cu12torch2.6'
    """
    if isinstance(origin, Missing):
        return ""
    name = origin.replace("%2B", "+").replace("%2b", "+").rpartition("/")[2]
    found = re.match(rf"[A-Za-z0-9_.]+-{re.escape(release)}(\+[A-Za-z0-9._]{{1,60}})-", name)
    return found[1] if found else ""


_REPAIRED = ("numpy",)
"""Whose wheels for Linux bring libraries in a folder of their own beside the package (auditwheel); a distribution's or conda's bring none."""


def _is_repaired(wheel: Fact[str]) -> bool:
    return not isinstance(wheel, Missing) and any(
        "linux_2_" in tag or "manylinux20" in tag for tag in parse_headers(wheel).get("tag", [])
    )


_MOST_LIBRARIES = 40


def library_sizes(record: str) -> dict[str, int]:
    """Return the sizes of the shared libraries that a RECORD lists (path, hash, size).

    >>> library_sizes("nvidia/nccl/lib/libnccl.so.2,sha256=x,190000000\\nnvidia/nccl/__init__.py,sha256=y,0\\nnvidia/nccl/lib/a.so.1,,\\n")
    {'nvidia/nccl/lib/libnccl.so.2': 190000000}
    """
    found: dict[str, int] = {}
    for line in record.splitlines()[:20_000]:
        path, _, size = line.rpartition(",")
        path = path.partition(",")[0]
        if ".so" in path and ".." not in path and (octets := natural(size)) is not None and len(found) < _MOST_LIBRARIES:
            found[path] = octets
    return found


def _differs(host: Host, path: str, size: int) -> bool:
    found = host.stat(path)
    return found.why is Why.ABSENT if isinstance(found, Missing) else found.size != size


def parse_headers(text: str) -> dict[str, list[str]]:
    """Return the headers of METADATA, PKG-INFO or WHEEL, by lower-case name; the description after the first empty line is not read.

    >>> parse_headers("Name: torch\\nRequires-Dist: filelock\\nRequires-Dist: sympy>=1.13.3\\n\\nTag: no")
    {'name': ['torch'], 'requires-dist': ['filelock', 'sympy>=1.13.3']}
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.strip():
            break
        name, colon, value = line.partition(":")
        if colon and not line[:1].isspace():
            found.setdefault(name.lower(), []).append(value.strip())
    return found


def _is_leftover(name: str) -> bool:
    """pip renames what it is about to remove by replacing its first characters: ``~orch``, ``~~rch``, ``~-rch``."""
    stem = name.lstrip("~-").partition("-")[0].partition(".")[0]
    rest = normalised(stem)
    known = ("torch", "torchvision", "torchaudio", "numpy", "nvidia", "triton")
    return (len(rest) > 2 and any(whole.endswith(rest) and whole != rest for whole in known)) or rest.startswith("vidia-")


def in_conda(host: Host, prefix: str) -> list[Distribution]:
    """Return what conda installed below ``prefix``: ``pytorch-2.1.0-py3.11_cuda12.1_cudnn8.9.2_0.json``."""
    place = f"{prefix}/conda-meta"
    names = host.names(place)
    found = []
    for file in known(names, ()):
        parts = file.removesuffix(".json").rsplit("-", 2)
        if file.endswith(".json") and len(parts) == 3 and matters(normalised(parts[0])):
            found.append(Distribution(name=normalised(parts[0]), version=parts[1], location=place, build=parts[2]))
    return found
