"""The releases of torch: CUDA builds, pinned libraries, Python versions, and the GPUs that their code runs on."""

from __future__ import annotations

import functools

import msgspec

from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.version import Version, version

Capability = tuple[int, int]


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One torch release, as the metadata of its PyPI wheels for Linux tells."""

    torch: str
    cuda: str
    """CUDA of the PyPI build."""
    variants: tuple[str, ...]
    """CUDA builds offered on the project's own index: ``cu126`` …"""
    pins: dict[str, str]
    """Library → version (or specifier) that the PyPI wheel asks for: cublas, cudnn, nccl, nvshmem, cusparselt, triton."""
    requires_python: str
    abis: tuple[str, ...]
    """Python ABIs of the x86_64 wheels: ``cp312``, ``cp313t`` …"""
    tag: str
    """Platform tag of the x86_64 wheel."""
    aarch64_has_cuda: bool
    torchvision: str
    """The version made for this torch; ``>=0.29.1`` where only a floor is declared."""
    torchaudio: str
    source: str


@functools.cache
def releases() -> tuple[Release, ...]:
    """Return all releases, the oldest first."""
    return tuple(
        Release(
            torch=row["torch"],
            cuda=row["pypi_default_cuda"],
            variants=tuple(
                word for word in row["download_pytorch_org_variants"].partition("(")[0].split() if word.startswith("cu")
            ),
            pins={name: row[name] for name in ("cublas", "cudnn", "nccl", "nvshmem", "cusparselt", "triton") if row[name]},
            requires_python=row["requires_python"],
            abis=tuple(row["pypi_x86_64_abis"].split()),
            tag=row["pypi_x86_64_tag"],
            aarch64_has_cuda=row["pypi_aarch64_wheel_kind"] == "CUDA",
            torchvision=row["torchvision"],
            torchaudio=row["torchaudio"].partition(" ")[0],
            source=row["metadata_read_from"],
        )
        for row in rows("torch_releases")
    )


def release(torch: str) -> Release | None:
    """Return the release called ``torch`` (a local suffix like ``+cu130`` does not matter); None for one that no table knows, nightlies included.

    >>> release("2.11.0+cu128").cuda, release("2.6.0.dev20241112+cu121")
    ('13.0', None)
    """
    plain = torch.partition("+")[0]
    return next((item for item in releases() if item.torch == plain), None)


_EARLIER = {4: (5, 8), 5: (5, 8), 6: (6, 8), 7: (6, 9), 8: (6, 9), 9: (6, 9), 10: (6, 9), 11: (7, 10), 12: (7, 10)}
"""Minor of torch 1 before those of the table → minors of the oldest and the newest Python 3 with a wheel for Linux on x86_64 (the files of each release on
PyPI, counted 2026-11-28)."""


def pythons_of(torch: str) -> tuple[int, int] | None:
    """Return the minors of the oldest and the newest Python 3 for which a release has wheels; None for one that no table knows.

    >>> pythons_of("1.10.0"), pythons_of("2.1.0"), pythons_of("0.4.1")
    ((6, 9), (8, 11), None)
    """
    known = release(torch)
    if known is not None:
        minors = [int(abi[3:].rstrip("mt")) for abi in known.abis]
        return (min(minors), max(minors)) if minors else None
    major, _, minor = torch.partition(".")
    return _EARLIER.get(int(minor.partition(".")[0] or -1)) if major == "1" else None


def newest() -> Release:
    return releases()[-1]


def is_release(torch: str) -> bool:
    """Return whether this is a final version (no nightly, no alpha of a vendor's container, no build from a commit).

    >>> is_release("2.4.1+rocm6.1"), is_release("2.5.0a0+872d972e41"), is_release("0.16.1+fdea156"), is_release("2.6.0.dev20241112+cu121")
    (True, False, False, False)
    """
    plain, _, local = torch.partition("+")
    known = not local or local == "cpu" or local.startswith(("cu", "rocm", "xpu", "PTX"))
    return known and bool(plain) and None not in map(natural, plain.split("."))


def local_cuda(torch: str) -> str:
    """Return the CUDA version in a local suffix: ``12.1`` of ``2.4.0+cu121``; ``""`` without one.

    >>> local_cuda("2.4.0+cu121"), local_cuda("1.10.0+cu102"), local_cuda("2.4.0+cpu")
    ('12.1', '10.2', '')
    """
    digits = torch.partition("+cu")[2].partition(".")[0]
    return f"{digits[:-1]}.{digits[-1]}" if natural(digits) is not None and len(digits) in (2, 3) else ""


def newest_with(major: int) -> Release | None:
    """Return the newest release that still has a build for this CUDA major version.

    >>> newest_with(12).torch
    '2.14.1'
    """
    return next((item for item in reversed(releases()) if any(int(name[2:-1]) == major for name in item.variants)), None)


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What code a build holds."""

    arches: tuple[str, ...]
    """``sm_90`` and, for PTX, ``compute_120``."""
    source: str
    confidence: str


def compiled_for(torch: str, cuda: str, machine: str) -> Compiled | None:
    """Return the architectures of an official build; None where no table knows it (nightlies and vendors' builds too).

    >>> compiled_for("2.7.1+cu128", "12.8", "x86_64").arches
    ('sm_75', 'sm_80', 'sm_86', 'sm_90', 'sm_100', 'sm_120', 'compute_120')
    """
    if not is_release(torch):
        return None
    minor = ".".join(torch.split(".")[:2])
    for row in rows("torch_arch_list"):
        if row["torch"] == minor and row["machine"] == machine and cuda in row["cuda"].split("/"):
            arches = [f"sm_{word}" for word in row["sm_list"].split()]
            arches += [f"compute_{word}" for word in row["ptx_for"].split()]
            return Compiled(arches=tuple(arches), source=row["source"], confidence=row["confidence"])
    return None


_ON_CHIP = frozenset(((5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)))
"""GPUs of Jetson and Drive: other code than their siblings' (until CUDA 13.2 let 7.2 and 8.7 run it), and other wheels."""


def on_chip(cc: Capability) -> bool:
    return cc in _ON_CHIP


def runs(arch: str, cc: Capability, cuda: Version) -> bool:
    """Return whether code for ``arch`` runs on a device of compute capability ``cc``.

    Machine code runs on the same major version from its own minor version on; PTX (``compute_``) on anything newer, as far
    as the driver compiles it. Source: DEVICE_REQUIREMENT in torch/cuda/__init__.py of torch 2.15, see cubin_compat.csv.

    >>> runs("sm_86", (8, 9), (12, 1)), runs("sm_100", (10, 3), (12, 8)), runs("sm_90", (12, 0), (12, 4)), runs("sm_90a", (9, 0), (12, 4))
    (True, True, False, True)
    >>> runs("sm_80", (8, 7), (12, 6)), runs("sm_80", (8, 7), (13, 2)), runs("compute_90", (12, 0), (12, 4))
    (False, True, True)
    """
    kind, _, number = arch.partition("_")
    digits = number.rstrip("af")
    if len(digits) < 2 or natural(digits) is None:
        return False
    made = (int(digits[:-1]), int(digits[-1]))
    if kind == "compute":
        return number == digits and cc >= made
    if number.endswith("a"):
        return cc == made
    if made in ((10, 1), (11, 0)) and cc in ((10, 1), (11, 0)):
        return True  # one GPU, renamed in CUDA 13
    if cc in _ON_CHIP and made != cc and not (cuda >= (13, 2) and cc in ((7, 2), (8, 7))):
        return False
    return made[0] == cc[0] and made[1] <= cc[1]


def sm_range(cuda: Version) -> tuple[int, int] | None:
    """Return the oldest and newest architecture that this CUDA toolkit compiles for; None for one that no table knows.

    >>> sm_range((12, 4)), sm_range((11, 3)), sm_range((10, 2)), sm_range((13, 2)), sm_range((99, 0))
    ((50, 90), (35, 86), (30, 75), (75, 121), None)
    """
    table = [(version(row["cuda"]), int(row["min_sm"]), int(row["max_sm"])) for row in rows("cuda_sm_range")]
    fitting = [row for row in table if row[0] <= cuda[:2] and row[0][0] == cuda[0]] if cuda else []
    return max(fitting)[1:] if fitting else None
