"""The Linux builds of torch, and their requirements: interpreter, glibc, driver, GPU."""

from __future__ import annotations

import functools

import msgspec

from torchtune_sys.knowledge import cuda as drivers
from torchtune_sys.knowledge import torch as releases
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.version import Version, version

INDEX = "https://download.pytorch.org/whl/"
MACHINES = ("x86_64", "aarch64")


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """One build of one release for one machine."""

    torch: str
    name: str
    """``cu130``, ``cpu``"""
    machine: str
    index: str
    """``""`` for PyPI."""
    abis: tuple[str, ...]
    glibc: Version
    """The oldest that its binaries run on."""
    driver: Version
    """The oldest that runs it; ``()`` for a CPU build."""
    arches: tuple[str, ...]
    """GPU code that it holds; empty for a CPU build."""
    torchvision: str
    source: str
    cuda: Version
    """``()`` for a CPU build."""

    def runs_on(self, cc: tuple[int, int]) -> bool:
        return _runs(self.arches, self.cuda, cc)


@functools.cache
def _runs(arches: tuple[str, ...], cuda: Version, cc: tuple[int, int]) -> bool:
    return any(releases.runs(arch, cc, cuda) for arch in arches)


@functools.cache
def builds(machine: str) -> tuple[TorchBuild, ...]:
    """Return all builds, the newest release first; of a release the build on PyPI first, then the newer CUDA first, the CPU build last.

    A CUDA build is left out where no table says which GPUs it holds code for, or which driver runs it.

    >>> [build.name for build in builds("x86_64") if build.torch == "2.14.1"]
    ['cu130', 'cu132', 'cu126', 'cpu']
    >>> [build.name for build in builds("aarch64") if build.torch == "2.10.0"]
    ['cu130', 'cu128', 'cu126', 'cpu']
    """
    return tuple(build for row in reversed(rows("torch_releases")) for build in _of_release(row["torch"], machine, row))


def _of_release(torch: str, machine: str, row: dict[str, str]) -> list[TorchBuild]:
    release = releases.release(torch)
    if release is None or machine not in MACHINES:
        return []
    on_pypi = release.cuda.replace(".", "") if machine == "x86_64" or release.aarch64_has_cuda else ""
    names = sorted({*release.variants, f"cu{on_pypi}"} - {"cu"}, key=lambda name: (name != f"cu{on_pypi}", -int(name[2:])))
    made = [_cuda(release, name, machine, row, "" if name == f"cu{on_pypi}" else f"{INDEX}{name}") for name in names]
    # Before CUDA came to it, PyPI's build for aarch64 was the CPU's.
    cpu = _build(release, "cpu", machine, row, f"{INDEX}cpu" if on_pypi else "")
    return [*(build for build in made if build is not None), cpu]


def _cuda(release: releases.Release, name: str, machine: str, row: dict[str, str], index: str) -> TorchBuild | None:
    number = releases.local_cuda(f"{release.torch}+{name}")
    compiled = releases.compiled_for(release.torch, number, machine)
    floor = drivers.floor_for(version(number))
    if compiled is None or floor is None:
        return None
    build = _build(release, name, machine, row, index)
    return msgspec.structs.replace(build, driver=floor.version, arches=compiled.arches)


def _build(release: releases.Release, name: str, machine: str, row: dict[str, str], index: str) -> TorchBuild:
    return TorchBuild(
        torch=release.torch,
        name=name,
        machine=machine,
        index=index,
        abis=release.abis,
        glibc=_glibc(release.torch, name, machine, row),
        driver=(),
        arches=(),
        torchvision=release.torchvision if release.torchvision.startswith(">=") else f"=={release.torchvision}",
        source=release.source,
        cuda=version(releases.local_cuda(f"{release.torch}+{name}")),
    )


def _glibc(torch: str, name: str, machine: str, row: dict[str, str]) -> Version:
    """Return the glibc of the image that the wheel was built in. Tags before 2.7 promise more than the binaries hold.

    Sources: file names on PyPI; pytorch issue 123649 and release notes of 2.6 (cu126 was built on manylinux_2_28 first).

    >>> row = {"pypi_x86_64_tag": "manylinux1_x86_64", "pypi_aarch64_tag": "manylinux_2_28_aarch64"}
    >>> _glibc("2.6.0", "cu124", "x86_64", row), _glibc("2.6.0", "cu126", "x86_64", row), _glibc("2.6.0", "cpu", "aarch64", row)
    ((2, 17), (2, 28), (2, 28))
    """
    tag = row[f"pypi_{machine}_tag"]
    if "manylinux_" in tag:
        return version(tag.partition("manylinux_")[2].replace("_", "."))
    return (2, 28) if (torch, name) == ("2.6.0", "cu126") else (2, 17)
