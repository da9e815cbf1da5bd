"""The GPU driver: what the kernel runs, what lies in user space, and whether this session may use it."""

from __future__ import annotations

from torchtune_sys.formats.pci_paths import perhaps_gpu
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.driver import AmdClock, AmdErrors, DeviceNode, DriverFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.integrated_gpus import is_integrated
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, known, need
from torchtune_sys.probes.driver import files as driver_files
from torchtune_sys.probes.pci import probe as pci
from torchtune_sys.probes.pci.details import sleeps
from torchtune_sys.probes.system import machine

_VERSION = "/proc/driver/nvidia/version"
_NO_GPU = Missing(Why.ABSENT, "driver", "neither an NVIDIA GPU nor its driver is here")
_NO_AMD = Missing(Why.ABSENT, "PCI", "no AMD GPU")


def probe(host: Host, intent: Workload) -> DriverFacts:
    """Probe the driver; a host without any sign of NVIDIA costs the PCI listing and four small looks."""
    nvidia, amd, intel, switches = _devices(host)
    version_text = host.text(_VERSION)
    wsl = host.exists("/dev/dxg")
    none_here = (
        not isinstance(nvidia, Missing) and not nvidia and isinstance(version_text, Missing) and version_text.why is Why.ABSENT
    )
    modules = host.text("/proc/modules")
    loaded = _loaded(host, version_text, modules)
    version, flavour = _kernel_side(host, version_text)
    found = DriverFacts(
        nvidia_devices=nvidia,
        amd_devices=amd,
        nvswitches=switches,
        module_loaded=loaded,
        module_version=version,
        module_flavour=flavour,
        nouveau_loaded=_module(host, modules, ("nouveau", "nova_core")),
        uvm_loaded=_beside(host, loaded, modules, ("nvidia_uvm",)),
        peermem_loaded=_beside(host, loaded, modules, ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem")),
        wsl=wsl,
        compute_node=driver_files.read_node(host, "/dev/kfd") if not isinstance(amd, Missing) and amd else _NO_AMD,
        other_nodes=_other_nodes(host, intel),
        amd_render_nodes=_amd_render_nodes(host, amd),
        level_zero=_level_zero(host, intel),
        amd_partitions=_amd_partitions(host, amd),
        amd_errors=_amd_errors(host, amd),
        amd_clocks=_amd_clocks(host, amd),
    )
    return _nothing_further(found) if none_here and wsl is not True else _further(host, found)


def _nothing_further(found: DriverFacts) -> DriverFacts:
    """Also on a Jetson, whose GPU is no PCI function and has a driver of its own (nvgpu)."""
    import msgspec

    names = (name for name in found.__struct_fields__ if name not in _SEEN_ANYWHERE)
    return msgspec.structs.replace(found, **dict.fromkeys(names, _NO_GPU))


_SEEN_ANYWHERE = (
    "nvidia_devices",
    "amd_devices",
    "nvswitches",
    "module_loaded",
    "module_version",
    "module_flavour",
    "nouveau_loaded",
    "uvm_loaded",
    "peermem_loaded",
    "wsl",
    "compute_node",
    "other_nodes",
    "amd_render_nodes",
    "level_zero",
    "amd_partitions",
    "amd_errors",
    "amd_clocks",
)


def _further(host: Host, found: DriverFacts) -> DriverFacts:
    import msgspec

    libraries = driver_files.read_libraries(host)
    params = host.text("/proc/driver/nvidia/params")
    down = found.module_loaded is not True
    lacking = driver_files.bars_nvidia if down else driver_files.bars_uvm if found.uvm_loaded is False else None
    settled = Missing(Why.NOT_SUPPORTED, "driver", "not looked for, since the module is loaded")
    barred: Fact[bool] = Missing(Why.ABSENT, "nouveau", "not loaded")
    if down and found.nouveau_loaded is True:
        from torchtune_sys.probes.software.next_boot import nouveau_barred

        barred = nouveau_barred(host)
    return msgspec.structs.replace(
        found,
        library_version=libraries.version,
        library_versions=libraries.versions,
        empty_libraries=libraries.empty,
        libcuda=libraries.libcuda,
        libraries_apart=libraries.apart,
        wsl_libraries_on_path=driver_files.wsl_on_path(host) if found.wsl is True else _NO_GPU,
        wsl_without_cuda=driver_files.wsl_without_cuda(host) if found.wsl is True else _NO_GPU,
        storage_loaded=_module(host, host.text("/proc/modules"), ("nvidia_fs",)),
        direct_storage_only=_direct_storage_only(host),
        uvm_hmm_disabled=_switch(host, "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"),
        device_nodes=driver_files.read_nodes(host),
        power_daemon=_daemon(host, "nvidia-powerd", ()),
        persistenced=_daemon(host, "nvidia-persistenced", ("nvidia-persistenced.pid", "socket")),
        imex=_daemon(host, "nvidia-imex", ("nvidia-imex.pid",)),
        imex_channels=_imex_channels(host),
        fabric_manager=_daemon(host, "nvidia-fabricmanager", ("nv-fabricmanager.pid",)),
        fabric_manager_version=_fabric_manager_version(host),
        module_params=params if isinstance(params, Missing) else parse_params(params),
        modules_for_kernel=_modules_for_kernel(host) if down else True,
        module_barred_by=settled if lacking is None else driver_files.modprobe_file(host, lacking),
        secure_boot=_secure_boot(host) if down else settled,
        nouveau_barred=barred,
    )


@fact
def _switch(host: Host, path: str) -> Fact[bool]:
    """Return a module's parameter of type bool (kernel/params.c: Y or N)."""
    word = need(host.word(path))
    return word == "Y" if word in ("Y", "N") else Missing(Why.UNPARSED, path, word[:40])


_CUFILE = "/etc/cufile.json"


def _direct_storage_only(host: Host) -> Fact[bool]:
    """Who forbids the way through the host's memory wants GPUDirect Storage; by PCI P2PDMA it needs no nvidia-fs."""
    from torchtune_sys.formats.cufile import parse_cufile

    text = host.text(_CUFILE)
    found = text if isinstance(text, Missing) else parse_cufile(text, _CUFILE)
    return found if isinstance(found, Missing) else not found.allow_compat_mode and not found.use_pci_p2pdma


def _imex_channels(host: Host) -> Fact[tuple[str, ...]]:
    names = host.names("/dev/nvidia-caps-imex-channels")
    if isinstance(names, Missing):
        return () if names.why is Why.ABSENT else names
    return tuple(name for name in names if name.startswith("channel"))


def _devices(host: Host) -> tuple[Fact[tuple[str, ...]], Fact[tuple[str, ...]], Fact[tuple[str, ...]], Fact[int]]:
    """NVIDIA, AMD and Intel GPUs, and the number of NVSwitches."""
    names = host.names(pci.DEVICES)
    if isinstance(names, Missing):
        return names, names, names, names
    nvidia, amd, intel, switches = [], [], [], 0
    doubt: Missing | None = None
    for name in names:
        if pci.address_key(name) is None:
            continue
        class_, vendor = pci.class_and_vendor(host, name)
        if isinstance(class_, Missing) or isinstance(vendor, Missing):
            doubt = perhaps_gpu(class_, vendor) if doubt is None else doubt
            if isinstance(class_, Missing) and class_.why is Why.HIDDEN:
                return class_, class_, class_, class_
        elif vendor == "0x10de" and class_[2:4] == "03":
            if isinstance(host.link(f"{pci.DEVICES}/{name}/physfn"), Missing):  # a slice of a vGPU host's GPU, made for a guest
                nvidia.append(name)
        elif vendor == "0x10de" and class_[2:6] == "0680":
            switches += 1
        elif vendor == "0x1002" and class_[2:4] in ("03", "12") and _trains(host, name):
            amd.append(name)
        elif vendor == "0x8086" and class_[2:4] == "03" and not is_integrated(vendor, known(pci.device_id(host, name), "")):
            intel.append(name)
    gpus = [tuple(found) if found or doubt is None else doubt for found in (nvidia, amd, intel)]
    return gpus[0], gpus[1], gpus[2], switches


_OF_TEGRA = ("/dev/nvmap", "/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu")
"""What CUDA opens on a Jetson (nvgpu)."""


def _other_nodes(host: Host, intel: Fact[tuple[str, ...]]) -> Fact[tuple[DeviceNode, ...]]:
    """Return the nodes of Intel's cards and of a Jetson's GPU."""
    if isinstance(intel, Missing) and intel.why is not Why.ABSENT:  # a kernel without PCI has no card
        return intel
    paths = (*_render_nodes(host, known(intel, ())), *_OF_TEGRA)
    found = (driver_files.read_node(host, path, "") for path in paths)
    return tuple(node for node in found if not isinstance(node, Missing))


def _render_nodes(host: Host, addresses: tuple[str, ...]) -> list[str]:
    """Return the paths of the render nodes that the kernel lists for PCI functions."""
    listed = (host.names(f"{pci.DEVICES}/{address}/drm") for address in addresses)
    return [f"/dev/dri/{name}" for names in listed for name in known(names, ()) if name.startswith("renderD")]


@fact
def _amd_render_nodes(host: Host, addresses: Fact[tuple[str, ...]]) -> Fact[tuple[str, ...]]:
    paths = _render_nodes(host, need(addresses))
    if not paths:
        return Missing(Why.ABSENT, pci.DEVICES, "the kernel lists no render node of an AMD GPU")
    return tuple(path.rpartition("/")[2] for path in paths if need(host.exists(path)))


def _trains(host: Host, name: str) -> bool:
    """Whether an AMD GPU is one that amdgpu serves, and not the graphics of a processor."""
    number = known(pci.device_id(host, name), "")
    return pci.bound_driver(host, name) == "amdgpu" and not is_integrated("0x1002", number)


def _amd_partitions(host: Host, addresses: Fact[tuple[str, ...]]) -> Fact[tuple[str, ...]]:
    """Return the compute partitions (Linux drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c, current_compute_partition)."""
    if isinstance(addresses, Missing):
        return addresses
    told = (host.word(f"{pci.DEVICES}/{address}/current_compute_partition") for address in addresses)
    return tuple(word for word in told if not isinstance(word, Missing) and word != "UNKNOWN")


def _level_zero(host: Host, cards: Fact[tuple[str, ...]]) -> Fact[bool]:
    if isinstance(cards, Missing):
        return cards
    return driver_files.loader_finds(host, "libze_intel_gpu.so.1") if cards else Missing(Why.ABSENT, "PCI", "no card of Intel's")


def _amd_clocks(host: Host, addresses: Fact[tuple[str, ...]]) -> Fact[tuple[AmdClock, ...]]:
    if isinstance(addresses, Missing) or not addresses:
        return addresses if isinstance(addresses, Missing) else ()
    from torchtune_sys.probes.driver import amd_clocks

    return amd_clocks.read(host, addresses)


def _amd_errors(host: Host, addresses: Fact[tuple[str, ...]]) -> Fact[tuple[AmdErrors, ...]]:
    """Return the counters below ``ras``; those of a GPU that sleeps are left alone, since reading them would wake it."""
    if isinstance(addresses, Missing):
        return addresses
    found: list[AmdErrors] = []
    counts = False
    unread: Missing | None = None
    for address in addresses:
        folder = f"{pci.DEVICES}/{address}"
        names = () if sleeps(host, folder) else host.names(f"{folder}/ras")
        if isinstance(names, Missing):
            unread = names if names.why is not Why.ABSENT and unread is None else unread
            continue
        for name in names:
            if name.endswith("_err_count"):
                text = host.text(f"{folder}/ras/{name}")
                counted = text if isinstance(text, Missing) else parse_ras(text)
                if isinstance(counted, Missing):
                    unread = counted if unread is None else unread
                    continue
                counts = True
                if any(counted):
                    block = name.removesuffix("_err_count")
                    found.append(AmdErrors(address=address, block=block, uncorrected=counted[0], corrected=counted[1]))
    if found or counts:
        return tuple(found)
    return Missing(Why.ABSENT, "ras", "no AMD GPU here counts errors") if unread is None else unread


def parse_ras(text: str) -> tuple[int, int] | Missing:
    """Return the uncorrected and corrected errors of one block (drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, amdgpu_ras_sysfs_read). A register of all
    ones, which cards without RAS show, is a multiple of 1,048,560 and counts nothing.

    >>> parse_ras("ue: 1\\nce: 4\\nde: 0\\n"), parse_ras("Query currently inaccessible\\n").why.value
    ((1, 4), 'unparsed')
    """
    counts: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.partition(":")
        if (count := natural(number.strip())) is not None:
            counts[name.strip()] = 0 if count % 1_048_560 == 0 else count
    if "ue" not in counts:
        return Missing(Why.UNPARSED, "ras", text.strip()[:60])
    return counts["ue"], counts.get("ce", 0)


def _loaded(host: Host, version_text: Fact[str], modules: Fact[str]) -> Fact[bool]:
    if not isinstance(version_text, Missing):
        return True
    return _module(host, modules, ("nvidia",))


def _module(host: Host, modules: Fact[str], names: tuple[str, ...]) -> Fact[bool]:
    if not isinstance(modules, Missing):
        lines = "\n" + modules
        return any(f"\n{name} " in lines for name in names)
    seen = [host.exists(f"/sys/module/{name}") for name in names]
    if True in seen:
        return True
    unseen = modules if modules.why is Why.HIDDEN else False
    return next((fact for fact in seen if isinstance(fact, Missing)), unseen)


def _beside(host: Host, driver_loaded: Fact[bool], modules: Fact[str], names: tuple[str, ...]) -> Fact[bool]:
    """Whether a module of the running driver's is loaded, too; hidden where no list of modules shows the driver itself (gVisor)."""
    found = _module(host, modules, names)
    if found is False and driver_loaded is True and isinstance(modules, Missing) and host.exists("/sys/module/nvidia") is False:
        return Missing(Why.HIDDEN, "/proc/modules", "the NVIDIA driver runs, and no list of modules shows it")
    return found


def _kernel_side(host: Host, text: Fact[str]) -> tuple[Fact[str], Fact[str]]:
    """Version and flavour of the loaded module."""
    if isinstance(text, Missing):
        return host.word("/sys/module/nvidia/version"), text
    parsed = parse_version(text)
    if parsed is None:
        unparsed = Missing(Why.UNPARSED, _VERSION, f"no version in {text.splitlines()[:1]}")
        return host.word("/sys/module/nvidia/version"), unparsed
    return parsed


def parse_version(text: str) -> tuple[str, str] | None:
    """Return the version and flavour from /proc/driver/nvidia/version; None where there is no NVRM line.

    >>> parse_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\\n")
    ('580.95.05', 'open')
    >>> parse_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\\nGCC version: 12")
    ('550.90.07', 'proprietary')
    """
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    flavour = "open" if "Open Kernel Module" in line else "proprietary"
    for word in line.split():
        parts = word.split(".")
        if len(parts) > 1 and None not in map(natural, parts):
            return word, flavour
    return None


def parse_params(text: str) -> dict[str, str]:
    """Parse /proc/driver/nvidia/params.

    >>> parse_params("ResmanDebugLevel: 4294967295\\nModifyDeviceFiles: 1\\nRegistryDwords: \\"\\"\\n")["ModifyDeviceFiles"]
    '1'
    """
    pairs = (line.partition(":") for line in text.splitlines()[:1000])
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _daemon(host: Host, name: str, files: tuple[str, ...]) -> Fact[bool]:
    """Whether a daemon runs, from what it leaves in /run or its unit's control group: cheaper than a look at every process.

    Inside a container neither shows a daemon of the host, so that absence tells nothing there.
    """
    places = [f"/run/{name}/{file}" for file in files]
    places += [f"/sys/fs/cgroup/system.slice/{name}.service", f"/sys/fs/cgroup/systemd/system.slice/{name}.service"]
    seen = [host.exists(place) for place in places]
    if True in seen:
        return True
    unsure = next((fact for fact in seen if isinstance(fact, Missing)), None)
    if unsure is not None:
        return unsure
    inside = machine.container(host)
    if inside == "" and host.exists(driver_files.DRIVER_CONTAINER) is True:
        return Missing(Why.NOT_SUPPORTED, f"/run/{name}", "a container installs the driver here, and starts what belongs to it")
    if inside == "" and host.word("/proc/1/comm") == "systemd":
        return False
    return Missing(Why.NOT_SUPPORTED, f"/run/{name}", "it may run outside this container", "run on the host")


@fact
def _fabric_manager_version(host: Host) -> Fact[str]:
    if host.exists(driver_files.DRIVER_CONTAINER) is True:
        return Missing(Why.ABSENT, "fabric manager", "the container that installs the driver keeps its log")
    from torchtune_sys.formats.fabric_manager_log import parse_fabric_manager_log, versions_apart

    path = "/var/log/fabricmanager.log"
    text = need(host.text(path))
    return (
        versions_apart(text)[0]
        or parse_fabric_manager_log(text)
        or Missing(Why.UNPARSED, path, "no start of the fabric manager is logged")
    )


@fact
def _modules_for_kernel(host: Host) -> Fact[bool]:
    return driver_files.has_module(host, need(host.word("/proc/sys/kernel/osrelease")))


def _secure_boot(host: Host) -> Fact[bool]:
    """Return the variable's last byte; the four before it are attributes (Documentation/filesystems/efivarfs.rst)."""
    path = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    text = host.text(path)
    if isinstance(text, Missing):
        no_efi = text.why is Why.ABSENT and host.exists("/sys/firmware/efi") is False
        return False if no_efi else text
    return text[-1:] == "\x01"
