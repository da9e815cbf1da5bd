"""What the dynamic loader finds on a made-up host: torch's libraries and those that they need, as its build lays them.

Three ways: NVIDIA's wheels beside torch, which torch's libraries name (DT_RPATH); a conda environment, whose lib/ they name; the
system's CUDA by way of ld.so.cache (own builds, JetPack). A host that says some of it itself is believed.
"""

from __future__ import annotations

from posixpath import normpath
from typing import Any

from machines import Recording, over, text

ORIGINS = {"x86_64": ("64:62", 0x303), "aarch64": ("64:183", 0xA03), "ppc64le": ("64:21", 0x503)}
"""Class and machine of an ELF file, and what the loader's cache marks it with."""
FOLDERS = {
    "cublas": ("libcublasLt", "libcublas"),
    "cuda_cupti": ("libcupti",),
    "cuda_nvrtc": ("libnvrtc",),
    "cuda_runtime": ("libcudart",),
    "cudnn": ("libcudnn", "libcudnn_graph", "libcudnn_ops"),
    "cufft": ("libcufft",),
    "curand": ("libcurand",),
    "cusolver": ("libcusolver",),
    "cusparse": ("libcusparse",),
    "nccl": ("libnccl",),
    "nvjitlink": ("libnvJitLink",),
}
"""The wheels for CUDA 12, by the directory below nvidia/; those for CUDA 13 lie together in nvidia/cu13, but for two."""
ABIS = {
    "libcudnn": "9",
    "libcudnn_graph": "9",
    "libcudnn_ops": "9",
    "libnccl": "2",
    "libcurand": "10",
    "libcusolver": "11",
    "libcufft": "11",
}
ABIS_13 = {"libcusolver": "12", "libcufft": "12", "libcusparse": "12"}
NEEDS = {
    "libcublas": ("libcublasLt",),
    "libcudnn_ops": ("libcudnn_graph",),
    "libcusolver": ("libcublas", "libcublasLt", "libcusparse", "libnvJitLink"),
    "libcusparse": ("libnvJitLink",),
}
TORCH = {
    "libtorch_global_deps": (),
    "libc10_cuda": ("libcudart",),
    "libtorch_cpu": ("libcupti", "libcudart"),
    "libtorch_cuda": ("libcudnn", "libnccl", "libcusparse", "libcufft", "libcurand", "libcublas", "libcublasLt", "libcusolver"),
}
"""The CUDA libraries that each of torch's asks for."""
_DRIVER = ("/usr/lib/", "/usr/lib64/", "/lib/", "/lib64/")


def with_libraries(host: Recording) -> Recording:
    """The answers and files of the dynamic loader laid below those that the host has already."""
    answer = next(value for name, value in host["answers"].items() if name.startswith("interpreter:"))
    kind, flags = ORIGINS[answer.get("machine") or host["answers"]["uname"]["machine"]]
    answers: Recording = {f"dynamic:{answer['executable']}": {"kind": kind}}
    listed, links = _driver(host, flags)
    drivers = {path for section in ("files", "links", "stats") for path in host.get(section, {}) if "/libcuda.so" in path}
    for path in [*links, *drivers]:
        answers[f"dynamic:{path}"] = {"kind": kind, "soname": "libcuda.so.1"}
    files: Recording = {}
    version = next((path for path in host["files"] if path.endswith("/torch/version.py")), "")
    cuda = next((line for line in text(host, version) if line.startswith("cuda")), "") if version else ""
    if cuda and "None" not in cuda:
        package, major = version.removesuffix("/version.py"), cuda.rpartition(" ")[2].strip("'").partition(".")[0]
        found, rpath = _places(host, package, major)
        answers |= _libraries(package, found, rpath, kind)
        files = dict.fromkeys((*found.values(), *(f"{package}/lib/{name}.so" for name in TORCH)), "")
        if not rpath:
            listed += [{"name": path.rpartition("/")[2], "path": path, "flags": flags} for path in found.values()]
    answers["loader-cache"] = listed
    below = {"files": files, "links": links, "answers": answers}
    return over(host, **{name: {**section, **host.get(name, {})} for name, section in below.items()})


def _driver(host: Recording, flags: int) -> tuple[list[Recording], Recording]:
    """Entries of the cache for the driver's library, and the link libcuda.so that its package or the container toolkit makes."""
    paths = {path for section in ("files", "links", "stats") for path in host.get(section, {})}
    found = [path for path in sorted(paths) if path.endswith("/libcuda.so.1") and path.startswith(_DRIVER)]
    found = [path for path in found if "64-nvidia" not in path]
    entries = [
        {"name": f"libcuda.so{end}", "path": path.removesuffix(".1") + end, "flags": flags}
        for path in found
        for end in (".1", "")
    ]
    return entries, {path.removesuffix(".1"): "libcuda.so.1" for path in found if path.removesuffix(".1") not in paths}


def _places(host: Recording, package: str, major: str) -> tuple[dict[str, str], str]:
    """Where each library lies, and the DT_RPATH that leads torch there; ``""`` where ld.so.cache does."""
    site = package.rpartition("/")[0]
    wheels = {path.removeprefix(f"{site}/nvidia_").rpartition("_cu")[0] for path in host["files"] if f"{site}/nvidia_" in path}
    conda = "/conda/" in site
    abis = {**ABIS, **(ABIS_13 if major == "13" else {})}
    found: dict[str, Any] = {}
    folders: list[str] = []
    for folder, names in FOLDERS.items():
        if folder in wheels or (wheels and not conda):
            place = f"nvidia/{folder if major != '13' or folder in ('cudnn', 'nccl') else 'cu13'}/lib"
            folders.append(f"$ORIGIN/../../{place}")
            directory = f"{site}/{place}"
        else:
            directory = site.rpartition("/lib/")[0] + "/lib" if conda else "/usr/local/cuda/lib64"
        found |= {name: f"{directory}/{name}.so.{abis.get(name, major)}" for name in names}
    rpath = ":".join(dict.fromkeys([*folders, *(["$ORIGIN/../../../.."] if conda else [])]))
    return found, rpath


def _libraries(package: str, found: dict[str, str], rpath: str, kind: str) -> Recording:
    files = {name: path.rpartition("/")[2] for name, path in found.items()}
    answers: Recording = {
        f"dynamic:{path}": {
            "kind": kind,
            "soname": files[name],
            "needed": [files[other] for other in NEEDS.get(name, ())],
            "runpath": "$ORIGIN:$ORIGIN/../../nvjitlink/lib" if rpath else "",
        }
        for name, path in found.items()
    }
    for folder in dict.fromkeys(part for part in rpath.split(":") if part):
        place = folder.replace("$ORIGIN", f"{package}/lib")
        linked = files["libnvJitLink"]
        answers[f"dynamic:{place}/../../nvjitlink/lib/{linked}"] = {"kind": kind, "soname": linked}
        for name, path in found.items():
            if path.rpartition("/")[0] == normpath(place):
                answers[f"dynamic:{place}/{files[name]}"] = answers[f"dynamic:{path}"]
    own = f"{rpath}:$ORIGIN".strip(":")
    for name, needed in TORCH.items():
        asked = [files[one] for one in needed]
        answers[f"dynamic:{package}/lib/{name}.so"] = {"kind": kind, "soname": f"{name}.so", "needed": asked, "rpath": own}
    answers[f"dynamic:{package}/lib/libtorch_cuda.so"]["needed"] += ["libc10_cuda.so", "libtorch_cpu.so"]
    return answers
