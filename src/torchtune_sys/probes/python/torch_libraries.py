"""Compare the libraries that importing torch asks for with what the dynamic loader would find. torch is not imported."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.python import LoaderChoice, PythonFacts
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.python.cuda_libraries import parse_libraries
from torchtune_sys.probes.python.loader_path import CUDA, Loaded, LoadingProcess


class Preloads(msgspec.Struct, frozen=True, kw_only=True):
    """The wheels' libraries that torch/__init__.py opens by their full path: (directory, beginning of the name)."""

    always: tuple[tuple[str, str], ...] = ()
    """After libtorch_global_deps.so was loaded."""
    on_failure: tuple[tuple[str, str], ...] = ()
    """After it was not; all of them must be there, and then it is tried again."""
    condition: str = ""
    """What must stand in the path of the libcudart that was loaded, for ``always``."""
    numbered: bool = False
    """Whether nvidia/cu13/lib is looked into as well."""


@fact
def predict(host: Host, facts: PythonFacts, env: Fact[dict[str, str]]) -> Fact[tuple[LoaderChoice, ...]]:
    """Return the libraries that importing torch would load; ABSENT where torch is not a CUDA build."""
    torch = need(facts.torch)
    if isinstance(torch.cuda, Missing):
        return torch.cuda
    if isinstance(env, Missing):
        return env
    if isinstance(facts.executable, Missing):
        return facts.executable
    if isinstance(facts.sys_path, Missing):
        return facts.sys_path
    if isinstance(facts.glibc, Missing) and facts.glibc.why is Why.ABSENT:
        return Missing(Why.NOT_SUPPORTED, "ld.so", "not the loader of glibc")
    executable, here = host.real(facts.executable), host.ask(queries.CWD)
    process = LoadingProcess(
        host,
        facts.executable if isinstance(executable, Missing) else executable,
        env,
        here if isinstance(here, str) else "",
    )
    unread = _import(host, process, torch.location, torch.cuda, facts.sys_path)
    if unread is not None:
        return unread
    _while_running(process)
    if process.unsure is not None:
        return process.unsure
    entry = torch.location.rpartition("/")[0] + "/"
    found = [_choice(host, process, item, entry) for item in process.loaded if item.path.rpartition("/")[2].startswith(CUDA)]
    return (*found, *(_nothing(name, asked_by) for name, asked_by in process.missing.items()))


def _import(host: Host, process: LoadingProcess, package: str, cuda: str, sys_path: tuple[str, ...]) -> Missing | None:
    """Take the steps of ``import torch`` that load libraries."""
    first = f"{package}/lib/libtorch_global_deps.so"
    answer = host.ask(f"{queries.DYNAMIC}:{first}")
    if isinstance(answer, Missing):
        return Missing(Why.NOT_RECORDED, first, answer.detail) if answer.why is Why.ABSENT else answer
    text = host.text(f"{package}/__init__.py")
    preloads = Preloads() if isinstance(text, Missing) else parse_preloads(text, cuda)
    numbered = f"cu{cuda.partition('.')[0]}" if preloads.numbered else ""
    if process.open(first):
        cudart = next((item.path for item in process.loaded if "/libcudart" in item.path), "")
        if cudart and preloads.condition in cudart:
            _open_all(process, sys_path, preloads.always, numbered)
    elif _open_all(process, sys_path, preloads.on_failure, numbered):
        process.missing.clear()
        process.open(first)
    names = process.listed(package)
    extension = next((name for name in sorted(names) if name.startswith("_C.") and name.endswith(".so")), "lib/libtorch_cuda.so")
    process.missing.clear()
    if not process.open(f"{package}/{extension}"):
        _keep_what_was_found(process, f"{package}/lib/libtorch_cuda.so")
    return None


def _keep_what_was_found(process: LoadingProcess, path: str) -> None:
    """Keep what was found though the import fails: which files the others would be still says why."""
    missing = dict(process.missing)
    process.open(path, partly=True)
    process.missing.update(missing)


def _open_all(process: LoadingProcess, sys_path: Iterable[str], wanted: tuple[tuple[str, str], ...], numbered: str) -> bool:
    """torch stops at the first that lies in no package."""
    for folder, start in wanted:
        path = _packaged(process, sys_path, folder, start, numbered)
        if path:
            process.open(path, "torch/__init__.py")
        elif folder != "nvtx":
            return False
    return bool(wanted)


def _packaged(process: LoadingProcess, sys_path: Iterable[str], folder: str, start: str, numbered: str) -> str:
    for entry in sys_path:
        if not entry.startswith("/") or entry.endswith(".zip"):
            continue
        below = process.listed(entry)
        places = [f"{entry}/nvidia/{name}/lib" for name in (folder, numbered) if name] if "nvidia" in below else []
        places += [f"{entry}/{folder}/lib"] if folder in below else []
        for place in places:
            for name in sorted(process.listed(place)):
                if name.startswith(start) and name[-1:].isdigit():
                    return f"{place}/{name}"
    return ""


def parse_preloads(text: str, cuda: str) -> Preloads:
    """Return what this torch/__init__.py opens itself.

    Read from the file, since vendors' builds differ from release numbers: up to 2.4 after a failure only; 2.5 nvJitLink for CUDA
    12.4 and later; 2.6 to 2.9 nvJitLink and NVRTC; from 2.10 on all of them.

    >>> old = 'def _preload_cuda_deps(): …\\ncuda_libs = {"cublas": "libcublas.so.*[0-9]"}\\n_preload_cuda_deps(lib_folder, lib_name)'
    >>> parse_preloads(old, "12.1").on_failure, parse_preloads(old, "12.1").always
    ((('cublas', 'libcublas.so.'),), ())
    """
    import re

    start = text.find("def _preload_cuda")
    end = text.find("USE_RTLD_GLOBAL_WITH_LIBTORCH", start)
    if start < 0:
        return Preloads()
    numbered = 'f"cu{' in text
    text = text[start : end if end > 0 else start + 20_000]
    rows = re.findall(r"""(_preload_cuda_\w{1,60}\()?\(?["'](\w+)["']\s*[,:]\s*["'](lib[\w-]+\.so\.)[^"']*["']""", text)
    table = tuple((folder, name) for call, folder, name in rows if not call)
    calls = tuple((folder, name) for call, folder, name in rows if call and folder != "nvtx")
    maps = text.find("/proc/self/maps")
    if maps < 0:
        return Preloads(on_failure=table, numbered=numbered)
    versions = re.search(r"version\.cuda in \[([^\]]{0,200})\]", text)
    condition = re.search(r"""["']([^"']+)["'] (?:not )?in _maps""", text[maps:])
    after = text[maps:].partition("except OSError")[0]
    always = calls if '_preload_cuda_deps("' in after or "_preload_cuda_deps('" in after else table
    asked = versions is None or f'"{cuda}"' in versions.group(1).replace("'", '"')
    return Preloads(
        always=always if asked else (),
        on_failure=table,
        condition=condition.group(1) if condition else "",
        numbered=numbered,
    )


def _while_running(process: LoadingProcess) -> None:
    """Add what is opened by name later: the driver's library by the CUDA runtime, cuDNN's parts by libcudnn."""
    for item in list(process.loaded):
        name = item.path.rpartition("/")[2]
        if name.startswith("libcudart"):
            process.would_find("libcuda.so.1", item)
        elif name.startswith("libcudnn.so."):
            ending = f".so.{name.split('.')[2]}"
            parts = [part for part in process.listed(item.path.rpartition("/")[0]) if part.startswith("libcudnn_")]
            for part in sorted(part for part in parts if part.endswith(ending)):
                process.would_find(part, item)


def _choice(host: Host, process: LoadingProcess, item: Loaded, entry: str) -> LoaderChoice:
    folder, _, file = item.path.rpartition("/")
    version = ""
    if not item.path.startswith(entry):
        real = host.real(item.path)
        numbers = "" if isinstance(real, Missing) else real.rpartition("/")[2].partition(".so.")[2]
        beside = parse_libraries(folder, tuple(sorted(process.listed(folder))))
        same = next((other.version for other in beside if other.path == item.path), "")
        version = (numbers if "." in numbers else same) or _of_wheel(process, item.path)
    return LoaderChoice(name=item.elf.soname or file, path=item.path, found_by=item.how, asked_by=item.asked_by, version=version)


_WHEELS = {"cudnn": "nvidia_cudnn", "nvJitLink": "nvidia_nvjitlink", "cublas": "nvidia_cublas", "nccl": "nvidia_nccl"}


def _of_wheel(process: LoadingProcess, path: str) -> str:
    """Return the version of another environment's wheel that holds the library: its files carry the major number only."""
    site, found, _ = path.partition("/nvidia/")
    stem, _, abi = path.rpartition("/")[2].removeprefix("lib").partition(".so.")
    wheel = next((wheel for start, wheel in _WHEELS.items() if stem.startswith(start)), "")
    if not found or not wheel:
        return ""
    folders = [name for name in process.listed(site) if name.startswith(wheel) and name.endswith(".dist-info")]
    versions = [name.removesuffix(".dist-info").partition("-")[2] for name in sorted(folders)]
    return next((version for version in versions if version.startswith(f"{abi}.")), "")


def _nothing(name: str, asked_by: str) -> LoaderChoice:
    return LoaderChoice(name=name, path=Missing(Why.ABSENT, name, "the loader finds none"), asked_by=asked_by)
