"""The options that describe a host which does not exist yet: its distribution, machine, GPUs and driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from torchtune_sys.cli import options as shared

if TYPE_CHECKING:
    from torchtune_sys.host.base import Host

_F = TypeVar("_F", bound=Callable[..., Any])

MACHINES = ("x86_64", "aarch64")
_MOST_GPUS = 64


def description_options(function: _F) -> _F:
    """Add the options that describe a host, in place of --from."""
    return shared.together(
        (
            click.option(
                "--system",
                metavar="ID-VERSION",
                help="Plan for a host that does not exist yet: debian-12, ubuntu-24.04, rocky-9 … (ID and VERSION_ID of os-release).",
            ),
            click.option("--machine", type=click.Choice(MACHINES), help="With --system: processor architecture. [x86_64]"),
            click.option(
                "--gpu", metavar="NAME", help="With --system: GPU model, by its NVML name, data sheet name or PCI device id."
            ),
            click.option("--gpus", type=click.IntRange(1, _MOST_GPUS), metavar="N", help="With --gpu: number of GPUs. [1]"),
            click.option("--driver", metavar="VERSION", help="With --gpu: NVIDIA driver already installed. [none]"),
            click.option("--kernel", metavar="RELEASE", help="With --system: kernel release, as in uname -r. [unknown]"),
        )
    )(function)


def described_host(options: Mapping[str, Any]) -> Host:
    """Return the host that the options describe. Raises click.UsageError."""
    if not options.get("system"):
        given = next((name for name in shared.DESCRIPTION if options.get(name)), "system")
        if given == "system":
            raise click.BadParameter("names no release; an example is debian-12.", param_hint="--system")
        raise click.UsageError(f"--{given} describes a host that --system names, as in --system debian-12.")
    if options.get("from_") or options.get("root"):
        raise click.UsageError("--system describes a host, and --from and --root name one: give one of them.")
    if options.get("gpus") and not options.get("gpu"):
        raise click.UsageError("--gpus goes with --gpu, which names what it counts.")
    if options.get("driver") and not options.get("gpu"):
        raise click.UsageError("--driver goes with --gpu, which names the GPUs.")
    from torchtune_sys.host.described import Description, described
    from torchtune_sys.knowledge.install import system_name

    os_id, version = _system(options["system"])
    name, codename = system_name(os_id, version)
    number = options.get("gpus") or 1
    device, gpu = _gpu(options["gpu"], number) if options.get("gpu") is not None else ("", "")
    if options.get("driver") and device.startswith("1002:"):
        raise click.UsageError("--driver is NVIDIA's; AMD's is part of the kernel.")
    return described(
        Description(
            os_id=os_id,
            os_version=version,
            os_name=name,
            codename=codename,
            machine=options.get("machine") or MACHINES[0],
            devices=(device,) * number if device else (),
            devices_name=gpu,
            driver=_numbers(options.get("driver") or "", r"\d{3}(\.\d{1,3}){1,2}", "--driver", "580.95.05"),
            kernel=_numbers(options.get("kernel") or "", r"\d+\.\d+[\w.+~-]*", "--kernel", "6.8.0-45-generic"),
        )
    )


def _numbers(value: str, pattern: str, option: str, example: str) -> str:
    if value and not re.fullmatch(pattern, value):
        raise click.BadParameter(f"{value} is not a version such as {example}.", param_hint=option)
    return value


def _system(value: str) -> tuple[str, str]:
    """Return ``ID`` and ``VERSION_ID``. Raises click.BadParameter with near matches."""
    from torchtune_sys.knowledge.install import system_ids
    from torchtune_sys.knowledge.install_python import has_musl
    from torchtune_sys.knowledge.tables import rows

    found = re.fullmatch(r"([a-z][a-z-]*?)(?:-(\d[\w.]*))?", value.strip().lower())
    if found is not None and found[1] in system_ids():
        rolling = any(row["id"] == found[1] and not row["version"] for row in rows("install_systems"))
        if bool(found[2]) is not rolling:
            return found[1], found[2] or ""
    if found is not None and has_musl(found[1]):
        why = "the C library there is musl, and no release of torch has a wheel for it: describe the system of a container with glibc"
        raise click.BadParameter(f"{value}: {why}", param_hint="--system")
    known = [f"{row['id']}-{row['version']}".rstrip("-") for row in rows("install_systems")]
    same = _of_the_same(value, known)
    meant = _near(value, same) if same else f"known: {', '.join(known)}"
    raise click.BadParameter(f"{value} names no release: {meant}", param_hint="--system")


def _of_the_same(value: str, releases: list[str]) -> list[str]:
    """Return the releases of the distribution that a person typed, perhaps wrongly.

    >>> _of_the_same("debain-12", ["debian-12", "fedora-43"]), _of_the_same("azurelinux-3", ["almalinux-9", "arch"])
    (['debian-12'], [])
    """
    import difflib

    ids = {release: release.rstrip("0123456789.-") for release in releases}
    close = difflib.get_close_matches(value.lower().rstrip("0123456789.-"), {*ids.values()}, cutoff=0.8)
    return [release for release in releases if ids[release] in close]


def _gpu(value: str, number: int) -> tuple[str, str]:
    """Return the PCI vendor and device id of one of ``number`` GPUs, and its name. Raises click.BadParameter with near matches."""
    from torchtune_sys.knowledge.gpus import device_ids
    from torchtune_sys.knowledge.install_rocm import gpus

    known = {**{n: f"10de:{d}" for n, d in device_ids().items()}, **{n: f"1002:{d}" for n, d in gpus().items()}}
    found = _named(value, known)  # before the ids: 3080 is a GeForce
    if not found:
        return _of_id(value) or _unknown(value, known)
    device, name = next(iter(found.items()))
    if len(found) == 1:
        return device, name
    if len({_installed_as(item, number) for item in found.values()}) == 1:
        return device, value.strip()
    several = f"{value} is ambiguous, and these are installed differently: {', '.join(found.values())}."
    raise click.BadParameter(several, param_hint="--gpu")


def _of_id(value: str) -> tuple[str, str] | None:
    from torchtune_sys.knowledge.gpus import architecture_by_device, name_by_device
    from torchtune_sys.knowledge.install_rocm import gpu

    matched = re.fullmatch(r"(?:(10de|1002):|0x)?([0-9a-f]{4})", value.strip().lower())
    if matched is not None and matched[1] != "1002" and architecture_by_device(matched[2]) is not None:
        return f"10de:{matched[2]}", name_by_device(matched[2]) or f"10de:{matched[2]}"
    if matched is not None and matched[1] != "10de" and gpu(matched[2])[0]:
        return f"1002:{matched[2]}", gpu(matched[2])[0]
    return None


def _unknown(value: str, known: Iterable[str]) -> NoReturn:
    raise click.BadParameter(f"{value} is in no table: {_near(value, known)}, or a PCI device id (10de:2330)", param_hint="--gpu")


def _named(value: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return device → first name: of the card with exactly this name, else of those whose name contains all words, if one is a number.

    >>> cards = {"NVIDIA H100 PCIe": "10de:2331", "H100 PCIe": "10de:2331", "NVIDIA H100 NVL": "10de:2321"}
    >>> _named("h100", cards), _named("NVIDIA H100-NVL", cards), _named("nvl", {**cards, "H200 NVL": "10de:233b"})
    ({'10de:2331': 'NVIDIA H100 PCIe', '10de:2321': 'NVIDIA H100 NVL'}, {'10de:2321': 'NVIDIA H100 NVL'}, {})
    """
    words = _words(value)
    first: dict[str, str] = {}
    for name, device in known.items():
        first.setdefault(device, name)
    exact = [device for name, device in known.items() if _words(name) == words]
    if exact:
        return {exact[0]: first[exact[0]]}
    found = {device: first[device] for name, device in known.items() if words and set(words.split()) <= set(_words(name).split())}
    return found if len(found) == 1 or re.search(r"\d", words) else {}


def _installed_as(name: str, number: int) -> object:
    """Return what decides on the driver, torch's build and the fabric manager."""
    from torchtune_sys.knowledge.gpus import compute_capability, on_nvswitch_board

    return (compute_capability(name) or name, number > 1 and on_nvswitch_board(name))


def _words(name: str) -> str:
    """
    >>> _words("NVIDIA  GeForce RTX 4090"), _words("rtx 4090")
    ('rtx 4090', 'rtx 4090')
    """
    kept = [
        word
        for word in re.sub(r"[-()]", " ", name.lower()).split()
        if word not in ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon")
    ]
    return " ".join(kept)


def _near(value: str, known: Iterable[str]) -> str:
    """Return what a person may have meant, else what is known: of many names a few."""
    import difflib

    names = list(known)
    words = _words(value)
    found = [name for name in names if words and words in _words(name)]
    found += difflib.get_close_matches(value, names, n=4, cutoff=0.6)
    if found:
        return f"did you mean {', '.join(list(dict.fromkeys(found))[:6])}"
    few = names if len(names) <= 30 else names[:: len(names) // 6][:6]
    return f"known: {', '.join(few)}" + (f" and {len(names) - len(few)} others" if few is not names else "")
