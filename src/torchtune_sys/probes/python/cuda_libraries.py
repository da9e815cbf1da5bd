"""CUDA outside of the interpreter's packages: toolkits, nvcc, and what LD_LIBRARY_PATH brings in."""

from __future__ import annotations

from collections.abc import Mapping

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.python import CudaLibrary
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.python.interpreter import which

_LIBRARIES = frozenset(
    (
        "libcuda",
        "libcudart",
        "libcublas",
        "libcublasLt",
        "libcudnn",
        "libnccl",
        "libnvJitLink",
        "libcusparse",
        "libnvrtc",
        "libstdc++",
    )
)
_DIRECTORIES = 64


def library_path(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return LD_LIBRARY_PATH, split; an empty part means the working directory (ld.so(8)) and is left out.

    >>> library_path({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64::/opt/x/lib/"})
    ('/usr/local/cuda/lib64', '/opt/x/lib')
    """
    parts = env.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    return tuple(dict.fromkeys(part.rstrip("/") or "/" for part in parts if part))


def libraries(host: Host, folders: tuple[str, ...]) -> tuple[CudaLibrary, ...]:
    """Return the first library of each kind (name and ABI) that these directories hold, as the loader would find them."""
    found: dict[tuple[str, str], CudaLibrary] = {}
    for folder in folders[:_DIRECTORIES]:
        names = host.names(folder) if folder.startswith("/") else ()
        for library in () if isinstance(names, Missing) else parse_libraries(folder, names):
            found.setdefault((library.name, library.abi), library)
    return tuple(found.values())


def parse_libraries(folder: str, names: tuple[str, ...]) -> list[CudaLibrary]:
    """Return the CUDA libraries among the names in a directory.

    >>> [(x.abi, x.version) for x in parse_libraries("/x", ("libcudnn.so", "libcudnn.so.9", "libcudnn.so.9.5.1", "libz.so.1"))]
    [('', ''), ('9', '9.5.1')]
    """
    versions: dict[tuple[str, str], str] = {}
    for name in names:
        base, dot, rest = name.partition(".so")
        if not dot or base not in _LIBRARIES or (rest and not (rest[0] == "." and rest[1:].replace(".", "").isdigit())):
            continue
        version = rest[1:]
        key = (base, version.partition(".")[0])
        versions[key] = max(versions.get(key, ""), version if "." in version else "", key=lambda text: text.count("."))
    return [
        CudaLibrary(name=base, abi=abi, version=version, path=f"{folder}/{base}.so{'.' + abi if abi else ''}")
        for (base, abi), version in sorted(versions.items())
    ]


@fact
def toolkits(host: Host) -> Fact[tuple[str, ...]]:
    """Return ``/usr/local/cuda-12.4 (12.4.131)`` for each; ABSENT where there is none."""
    names = need(host.names("/usr/local"))
    folders = [f"/usr/local/{name}" for name in names if name == "cuda" or name.startswith("cuda-")]
    real = {folder: host.real(folder) for folder in folders}
    found: dict[str, str] = {}
    for folder, place in real.items():
        version = toolkit_version(host, folder)
        if version and isinstance(place, str):
            found[place] = version
    if not found:
        return Missing(Why.ABSENT, "/usr/local", "no CUDA toolkit in /usr/local")
    return tuple(f"{place} ({version})" for place, version in sorted(found.items()))


@fact
def with_ptxas(host: Host, found: Fact[tuple[str, ...]]) -> Fact[tuple[str, ...]]:
    """Return the places of those toolkits that have a ptxas."""
    places = [item.partition(" (")[0] for item in need(found)]
    return tuple(place for place in places if host.exists(f"{place}/bin/ptxas") is True)


def toolkit_version(host: Host, folder: str) -> str:
    """Return the version of the toolkit in ``folder``; ``""`` where it holds none."""
    text = host.text(f"{folder}/version.json")
    if not isinstance(text, Missing):
        return parse_version_json(text)
    text = host.text(f"{folder}/version.txt")  # before CUDA 11.1
    return "" if isinstance(text, Missing) else next((word for word in text.split() if word[:1].isdigit()), "")


def parse_version_json(text: str) -> str:
    """Return the toolkit's version in its version.json; ``""`` where there is none.

    >>> parse_version_json('{"cuda": {"name": "CUDA SDK", "version": "12.4.20240318"}, "cuda_nvcc": {"version": "12.4.131"}}')
    '12.4.131'
    """
    from torchtune_sys.model import codec

    try:
        found = codec.loads(text)
    except (ValueError, RecursionError):
        return ""
    for part in ("cuda_nvcc", "cuda_cudart", "cuda"):
        entry = found.get(part) if isinstance(found, dict) else None
        version = entry.get("version") if isinstance(entry, dict) else None
        if isinstance(version, str):
            return version
    return ""


def nvcc(host: Host, env: Mapping[str, str]) -> tuple[Fact[str], Fact[str]]:
    """Return the path and version of the nvcc that torch's extension builder takes.

    Source: _find_cuda_home in torch/utils/cpp_extension.py: CUDA_HOME, CUDA_PATH, the nvcc on PATH, /usr/local/cuda.
    """
    home = env.get("CUDA_HOME") or env.get("CUDA_PATH") or ""
    path = f"{home}/bin/nvcc" if home.startswith("/") else next(which(host, env, ("nvcc",)), "/usr/local/cuda/bin/nvcc")
    real = host.real(path)
    if isinstance(real, Missing):
        return real, real
    folder = real.rpartition("/bin/")[0]
    version = toolkit_version(host, folder) or _conda_nvcc(host, folder)
    return path, version or Missing(Why.NOT_SUPPORTED, path, "its toolkit has no version.json", "nvcc --version")


def _conda_nvcc(host: Host, prefix: str) -> str:
    names = host.names(f"{prefix}/conda-meta")
    files = [] if isinstance(names, Missing) else [name for name in names if name.startswith("cuda-nvcc-")]
    versions = [file.split("-")[2] for file in files if len(file.split("-")) == 4]
    return next((version for version in versions if version[:1].isdigit()), "")
