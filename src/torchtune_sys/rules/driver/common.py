"""Code shared by the driver rules: the GPUs, the driver, and why no module is loaded."""

from __future__ import annotations

from torchtune_sys.formats.pci_paths import for_guests
from torchtune_sys.knowledge.cuda import Architecture
from torchtune_sys.knowledge.gpus import architecture_by_device
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.driver import DriverFacts
from torchtune_sys.model.snapshot import Snapshot, pci_devices_by_address
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, need, need_any
from torchtune_sys.model.version import version
from torchtune_sys.rules import gates

OF_NOUVEAU = ("nouveau", "nova_core", "NovaCore")
"""The drivers of the kernel's own; nova_core registers NovaCore (drivers/gpu/nova-core/nova_core.rs)."""


def nvml_error(s: Snapshot) -> str:
    """Return NVML's (or nvidia-smi's) name for why it could not look; ``""`` if it could, or was not asked."""
    return "" if isinstance(s.gpu, Missing) else s.gpu.error


def gpu_addresses(s: Snapshot) -> tuple[str, ...]:
    """Return the NVIDIA GPUs on the PCI bus that are this host's own; NotApplicable where there is none."""
    found = need_any(need(s.driver).nvidia_devices, "no NVIDIA GPU on this host")
    own = tuple(address for address in found if not for_guests(bound_driver(s, address)))
    if not own:
        raise NotApplicable("every NVIDIA GPU is passed to a virtual machine")
    if not (usable := gates.torch_serves(s, own)):
        raise NotApplicable(gates.TOO_OLD)
    return usable


def require_module(s: Snapshot) -> None:
    """Require that NVIDIA's kernel module is loaded."""
    if not need(need(s.driver).module_loaded):
        raise NotApplicable("the kernel module is not loaded")


def bound_driver(s: Snapshot, address: str) -> str:
    """Return the kernel driver of one PCI function; ``""`` for none or not known."""
    device = pci_devices_by_address(s).get(address)
    return "" if device is None else known(device.driver, "")


def seen_by_nvml(s: Snapshot) -> frozenset[str]:
    """Return the addresses of the GPUs that the driver serves, as far as NVML could tell."""
    if isinstance(s.gpu, Missing) or isinstance(s.gpu.devices, Missing):
        return frozenset()
    return frozenset(gpu.pci_address for gpu in s.gpu.devices if not isinstance(gpu.pci_address, Missing) and not gpu.lost)


def why_no_module(s: Snapshot) -> str:
    """Return ``loaded``, or the one reason that explains why the NVIDIA module is not: ``nouveau``, ``no-driver``, ``not-built``, ``secure-boot``
    or ``not-loaded`` (installed and built, but not loaded for a reason that is not seen).

    The reasons exclude each other, so that one fault gives one finding.
    """
    addresses = gpu_addresses(s)
    driver: DriverFacts = need(s.driver)
    if need(driver.module_loaded):
        return "loaded"
    if any(bound_driver(s, address) in OF_NOUVEAU for address in addresses):
        return "nouveau"
    built = driver.modules_for_kernel
    if absent(driver.library_version):
        return "not-loaded" if built is True else "no-driver"
    need(driver.library_version)
    if absent(built):  # containers have no /lib/modules
        return "not-loaded"
    if not need(built):
        return "not-built"
    if known(driver.module_barred_by, ""):
        return "not-loaded"  # nobody asked for it, so that nothing was refused
    return "secure-boot" if need(driver.secure_boot) else "not-loaded"


def kept_out(s: Snapshot) -> str:
    """Return what is seen to keep the module from loading."""
    barred = known(need(s.driver).module_barred_by, "")
    return f"{barred} keeps its module from loading" if barred else "its module is not loaded"


def architectures(s: Snapshot) -> dict[str, Architecture]:
    """Return generation of each NVIDIA GPU by PCI address, as far as tables know its device id."""
    devices = need(need(s.pci).devices)
    ids = {device.address: device.device for device in devices}
    found: dict[str, Architecture] = {}
    for address in gpu_addresses(s):
        device = ids.get(address, "")
        arch = None if isinstance(device, Missing) else architecture_by_device(device)
        if arch is not None:
            found[address] = arch
    return found


def driver_version(s: Snapshot) -> Fact[str]:
    """Return the driver's version: the loaded kernel module, which is what counts, else what NVML or its library says."""
    looks: list[Fact[str]] = []
    if not isinstance(s.driver, Missing):
        looks.append(s.driver.module_version)
    if not isinstance(s.gpu, Missing):
        looks.append(s.gpu.driver_version)
    if not isinstance(s.driver, Missing):
        looks.append(s.driver.library_version)
    found = next((look for look in looks if not isinstance(look, Missing) and version(look)), None)
    if found is not None:
        return found
    return looks[0] if looks else Missing(Why.NOT_RECORDED, "driver", "the driver was not looked at")


def not_served(s: Snapshot) -> frozenset[str]:
    """Return the addresses of GPUs that this driver cannot serve by its version or flavour, as far as both are known."""
    if isinstance(s.pci, Missing) or isinstance(s.pci.devices, Missing) or isinstance(s.driver, Missing):
        return frozenset()
    version_of = s.driver.module_version
    branch = 0 if isinstance(version_of, Missing) else (version(version_of) or (0,))[0]
    flavour = s.driver.module_flavour
    return frozenset(
        address
        for address, arch in architectures(s).items()
        if (branch and arch.last_branch is not None and branch > arch.last_branch)
        or (branch and arch.first_branch is not None and branch < arch.first_branch)
        or (flavour == "open" and arch.open_module == "no")
        or (flavour == "proprietary" and arch.open_module == "only")
    )


def display_cards(s: Snapshot) -> frozenset[str]:
    """Return the addresses of GPUs that are left to a display beside others that the driver serves: it cannot serve them, and nouveau has them, or no
    module could serve both (before Turing it is the proprietary one alone, from Blackwell on the open one)."""
    others = seen_by_nvml(s)
    devices = () if isinstance(s.driver, Missing) else known(s.driver.nvidia_devices, ())
    left = not_served(s) - others if others and len(devices) > len(others) else frozenset()
    if not left:
        return left
    kinds = architectures(s)
    opposed = any(kinds[address].open_module == "only" for address in others & kinds.keys())
    return frozenset(
        address for address in left if bound_driver(s, address) in OF_NOUVEAU or (opposed and kinds[address].open_module == "no")
    )


def container(s: Snapshot) -> str:
    """Return the kind of container, ``""`` for none."""
    return need(need(s.system).container)
