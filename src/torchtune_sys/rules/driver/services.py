"""Rules on what must run beside the driver: fabric manager, unified memory, persistence, GPUDirect RDMA."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.gpus import by_name
from torchtune_sys.knowledge.nccl import usable_ports
from torchtune_sys.model.actions import Advice, Install, Needs, Safety, Service
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, container_told, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, known_or_unknown, need, need_any
from torchtune_sys.model.version import version
from torchtune_sys.rules import gates
from torchtune_sys.rules.driver.common import gpu_addresses, require_module

_WAITING = ("not-started", "in-progress")
_STATES = (*_WAITING, "completed")
_OF_RACK = Advice(text="GB200 and GB300 racks: the switch trays run it, not this host; look there, and at nvidia-imex here")


@rule(
    id="fabric-manager-not-running",
    title="The fabric manager has not set up the NVSwitch fabric",
    severity=Severity.ERROR,
    cause="fabric-manager-not-running",
    fix=(
        Install(text="install nvidia-fabricmanager in exactly the driver's version (B200 and later: nvlsm too)"),
        Service(unit="nvidia-fabricmanager", state="enabled", needs=Needs.NOTHING),
        _OF_RACK,
    ),
)
def fabric_manager_not_running(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The host has NVSwitches, and its GPUs wait for the fabric or (before Hopper, where GPUs do not say) the daemon is not running.

    Why it matters
        CUDA refuses every GPU of such a board with error 802, "system not yet initialized".

    When to leave it
        The hypervisor of this virtual machine runs the fabric manager. The GPUs' own fabric state then counts, and is judged
        first.

    References
        https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
    """
    failed = _failed_start(s)
    if failed:
        source = "the fabric manager's log"
        yield Evidence(subject="nvidia-fabricmanager", seen=failed, wanted="started", source=source)
        return
    gates.nvidia_hardware(s)
    gpus = gpus_told(s)
    telling = [gpu for gpu in gpus if _fabric(gpu) in _STATES and gpu.mig is not True]
    for gpu in telling:
        state = _fabric(gpu)
        yield Evidence(
            subject=f"GPU {gpu.index}",
            seen=f"fabric state {state}",
            wanted="completed" + (" (the rack's switch trays set it up)" if _in_rack(gpu) else ""),
            verdict=Verdict.PASS if state == "completed" else Verdict.FAIL,
            source="nvmlDeviceGetGpuFabricInfoV",
            fix=(_OF_RACK,) if _in_rack(gpu) else (),
        )
    if telling:
        return
    if not need(need(s.driver).nvswitches):
        raise NotApplicable("no NVSwitch on this host")
    running = need(need(s.driver).fabric_manager)
    yield Evidence(
        subject="nvidia-fabricmanager",
        seen="running" if running else "not running",
        wanted="running",
        verdict=Verdict.PASS if running else Verdict.FAIL,
        source="/run/nvidia-fabricmanager",
    )


def _failed_start(s: Snapshot) -> str:
    """Why the fabric manager did not start, where a log tells and the GPUs are not of a kind that has no use for it."""
    failure = s.driver if isinstance(s.driver, Missing) else s.driver.fabric_manager_failure
    if isinstance(failure, Missing) or not failure:
        return ""
    gpus = gpus_told(s)
    models = [by_name(gpu.name) for gpu in gpus if not isinstance(gpu.name, Missing)]
    if any(_fabric(gpu) == "completed" for gpu in gpus) or (models and not any(model and model.nvswitch for model in models)):
        return ""
    if failure == "no NVSwitch":
        return "the driver shows it no NVSwitch (B200 and later: nvlsm is missing, or not running)" if models else ""
    return failure


def _in_rack(gpu: Gpu) -> bool:
    """Their NVSwitches are machines of their own, with their own fabric manager."""
    return not isinstance(gpu.name, Missing) and gpu.name.startswith(("NVIDIA GB200", "NVIDIA GB300"))


def _fabric(gpu: Gpu) -> str:
    return known(gpu.fabric_state, "")


@rule(
    id="fabric-manager-version-mismatch",
    title="The fabric manager and the driver have different versions",
    severity=Severity.ERROR,
    cause="fabric-manager-not-running",
    fix=(
        Install(text="install nvidia-fabricmanager in exactly the driver's version and restart it", needs=Needs.SERVICE_RESTART),
    ),
)
def fabric_manager_version_mismatch(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The fabric manager's log shows that it last started with a different version than the loaded kernel module.

    Why it matters
        The daemon refuses to start with a driver of another version; after the next reboot the NVSwitch fabric stays down.

    When to leave it
        The log is old, and the installed package already has the driver's version. Where every GPU says that it is in the fabric
        (Hopper and later), the log is not judged: the GPU operator's container keeps its own.

    References
        https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
    """
    gpu_addresses(s)
    driver = need(s.driver)
    if not any(_fabric(gpu) in _WAITING and not _in_rack(gpu) for gpu in gpus_told(s)):  # B200's NVSwitches are no PCI devices
        need_any(driver.nvswitches, "no NVSwitch on this host")
    logged = driver.fabric_manager_version
    if isinstance(logged, Missing) and logged.why in (Why.ABSENT, Why.UNPARSED):
        raise NotApplicable("no log of the fabric manager")
    module = need(driver.module_version)
    agree = version(need(logged)) == version(module)
    gpus = () if agree or isinstance(s.gpu, Missing) else known_or_unknown(s.gpu.devices, ())
    joined = bool(gpus) and all(_fabric(gpu) == "completed" for gpu in gpus)
    yield Evidence(
        subject="nvidia-fabricmanager",
        seen=f"version {need(logged)}" + ", and every GPU is in the fabric by now" * joined,
        wanted=f"version {module}",
        verdict=Verdict.PASS if agree or joined else Verdict.FAIL,
        source="/var/log/fabricmanager.log",
    )


@rule(
    id="nvidia-uvm-barred",
    title="CUDA cannot start, because modprobe is told not to load nvidia_uvm",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="take the line install nvidia-uvm (or nvidia_uvm) out of that file of modprobe.d, then sudo modprobe nvidia-uvm; where the file is in the "
            "initramfs, too, build that anew"
        ),
    ),
)
def nvidia_uvm_barred(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """nvidia is loaded and nvidia_uvm is not, and a file of modprobe.d replaces its loading by a program that does nothing.

    Why it matters
        nvidia-smi works, and cuInit fails for everyone ("CUDA unknown error", 999): /dev/nvidia-uvm cannot be made, by nvidia-modprobe neither.

    When to leave it
        The host's GPUs are for displays or video alone.

    References
        modprobe.d(5), install; README of the driver, chapter "nvidia-modprobe"
    """
    gpu_addresses(s)
    driver = need(s.driver)
    if not need(driver.module_loaded):
        raise NotApplicable("the kernel module is not loaded")
    loaded = need(driver.uvm_loaded)
    barred = "" if loaded or absent(driver.module_barred_by) else need(driver.module_barred_by)
    yield Evidence(
        subject="nvidia_uvm",
        seen="loaded" if loaded else f"not loaded, by {barred}" if barred else "not loaded so far",
        wanted="nothing that keeps it from loading",
        verdict=Verdict.FAIL if barred else Verdict.PASS,
        source=barred or "/proc/modules",
    )


@rule(
    id="nvidia-uvm-not-loaded",
    title="The module for CUDA's unified memory is not loaded",
    severity=Severity.ADVICE,
    superseded_by=("nvidia-uvm-barred",),
    fix=(
        Advice(
            text="sudo modprobe nvidia-uvm (at boot: nvidia-persistenced with nvidia-modprobe, or a modules-load.d file; where kernel.modules_disabled is 1, "
            "only such a file and the next start; Talos: machine.kernel.modules of the machine configuration)"
        ),
        Install(text="install nvidia-modprobe, with which CUDA can load it for ordinary users"),
    ),
)
def nvidia_uvm_not_loaded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """nvidia is loaded and nvidia_uvm is not; CUDA cannot start without it.

    Why it matters
        The first CUDA program loads it through the setuid helper nvidia-modprobe. Without that helper, or in a container, cuInit
        fails with "unknown error" (999) until somebody loads the module as root.

    When to leave it
        The host has just booted and nvidia-modprobe is installed: the first CUDA program loads the module.

    References
        README of the driver, chapter "nvidia-modprobe"
    """
    gpu_addresses(s)
    driver = need(s.driver)
    if not need(driver.module_loaded):
        raise NotApplicable("the kernel module is not loaded")
    loaded = need(driver.uvm_loaded)
    yield Evidence(
        subject="nvidia_uvm",
        seen="loaded" if loaded else "not loaded",
        wanted="loaded",
        verdict=Verdict.PASS if loaded else Verdict.FAIL,
        source="/proc/modules",
    )


@rule(
    id="gpu-persistence-mode-off",
    title="Persistence mode is off",
    severity=Severity.ADVICE,
    fix=(Service(unit="nvidia-persistenced", state="enabled", safety=Safety.SAFE),),
)
def gpu_persistence_mode_off(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver releases the GPU when its last client exits, and initialises it again for the next one.

    Why it matters
        Each first use then costs seconds on a host with many GPUs. Power limits and clocks set by hand are lost, and health
        counters are reset.

    When to leave it
        The GPU drives a display, which keeps it initialised, or is a laptop's, whose battery would not last (such GPUs are not
        reported).

    References
        https://docs.nvidia.com/deploy/driver-persistence/
        canonical/nvidia-graphics-drivers, debian/templates/nvidia-compute-utils-flavour.nvidia-persistenced.service.in (470 to 595), debian/71-nvidia.rules
    """
    gpus = gates.nvidia_gpus(s)
    if known_or_unknown(need(s.driver).wsl, False):
        raise NotApplicable("WSL: Windows manages the GPU")
    if gpus and all(gates.of_laptop(s, gpu) for gpu in gpus):
        raise NotApplicable("a laptop's GPU, which sleeps between programs to spare the battery")
    for gpu in gpus:
        if isinstance(gpu.persistence, Missing):
            if gpu.persistence.why is not Why.NOT_SUPPORTED and not gpu.lost:
                yield unsure(f"GPU {gpu.index}", gpu.persistence, "on")
            continue
        awake = gpu.persistence or known(gpu.display, False)
        yield Evidence(
            subject=f"GPU {gpu.index}",
            seen="on" if gpu.persistence else "off" + ", but a display keeps the GPU awake" * awake,
            wanted="on (nvidia-persistenced runs on the host)" if container_told(s) else "on",
            verdict=Verdict.PASS if awake else Verdict.FAIL,
            source="nvmlDeviceGetPersistenceMode",
            fix=() if awake else _kept_awake(s),
        )


def _kept_awake(s: Snapshot) -> tuple[Advice, ...]:
    """Return what helps where the daemon runs already, or its unit cannot be enabled; nothing where the rule's own fix does."""
    if need(s.driver).persistenced is True:
        return (_MODE_OF_DAEMON,)
    packages = () if isinstance(s.software, Missing) else known(s.software.packages, ())
    return (_UNIT_OF_UBUNTU,) if any(item.name.startswith("nvidia-compute-utils-") for item in packages) else ()


_UNIT_OF_UBUNTU = Advice(
    text="sudo nvidia-smi -pm 1 for now; the unit of nvidia-compute-utils has no [Install] section, so that systemctl enable does nothing, and leaves the mode "
    "off. To keep it: sudo systemctl edit --full nvidia-persistenced: --persistence-mode in place of --no-persistence-mode, StopWhenUnneeded=no, and at the end "
    "[Install] with WantedBy=multi-user.target; then sudo systemctl enable --now nvidia-persistenced"
)
_MODE_OF_DAEMON = Advice(
    text="nvidia-persistenced runs and leaves the mode off, as Ubuntu's unit tells it (--no-persistence-mode): sudo nvidia-smi -pm 1 for now; to keep it, "
    "sudo systemctl edit nvidia-persistenced: [Service], ExecStart=, and ExecStart= with the unit's own command without that option"
)


@rule(
    id="gpudirect-rdma-disabled",
    title="Network cards cannot reach GPU memory directly",
    severity=Severity.WARNING,
    cause="gpudirect-rdma-disabled",
    fix=(
        Advice(text="sudo modprobe nvidia-peermem (at boot: a file in /etc/modules-load.d)"),
        Advice(text="or use DMA-BUF: the open kernel module on Linux 5.12 or later"),
    ),
)
def gpudirect_rdma_disabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """An RDMA network for training is up (InfiniBand, or Ethernet of 100 Gb/s), but nvidia-peermem is not loaded and DMA-BUF is not available.

    Why it matters
        NCCL then copies all traffic between hosts through host memory, and multi-host training uses a fraction of the network's
        speed. One such host slows down the whole ring.

    When to leave it
        Training runs on this host only, or the cards share no PCIe path with the GPUs anyway. GeForce and TITAN cards, which cannot do it, and
        EFA, whose driver does it in its own way, are not judged.

    References
        https://docs.nvidia.com/cuda/gpudirect-rdma/ (Tesla and Quadro class GPUs)
        https://github.com/amzn/amzn-drivers, kernel/linux/efa (efa_nv_peermem)
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-direct
    """
    gpu_addresses(s)
    gates.may_span_hosts(s)
    if not gates.training_network(s):
        raise NotApplicable("no RDMA network for training is up")
    require_module(s)
    shown = gpus_told(s)
    if shown and all(any(kind in known(gpu.name, "") for kind in ("GeForce", "TITAN")) for gpu in shown):
        raise NotApplicable("the driver offers GPUDirect RDMA on no GeForce and no TITAN")
    peermem = need(need(s.driver).peermem_loaded)
    flavour = need(need(s.driver).module_flavour)
    kernel = need(need(s.system).kernel)
    dma_buf = flavour == "open" and version(kernel) >= (5, 12)
    ways = [name for name, there in (("nvidia-peermem", peermem), ("DMA-BUF", dma_buf)) if there]
    if not ways and not usable_ports(need(need(s.network).rdma)):
        raise NotApplicable("EFA: its driver reaches the GPUs itself, or by efa_nv_peermem, which Amazon's installer loads")
    refused = _refused(s)
    yield Evidence(
        subject="GPUDirect RDMA",
        seen=" and ".join(ways)
        or f"nvidia-peermem is not loaded{refused}, and DMA-BUF is not offered ({flavour} module, kernel {kernel})",
        wanted="nvidia-peermem or DMA-BUF",
        verdict=Verdict.PASS if ways else Verdict.FAIL,
        source="/proc/modules",
        fix=() if ways or not refused else (_REBUILD,),
    )


_REBUILD = Advice(
    text="rebuild the driver's modules against this RDMA stack (dkms, or reinstall the driver), then modprobe nvidia-peermem"
)


def _refused(s: Snapshot) -> str:
    """Return what the log says of nvidia-peermem that could not be loaded: it was built against another ib_core than the one that runs."""
    events = () if isinstance(s.kernel, Missing) else known(s.kernel.events, ())
    last = next((event for event in reversed(events) if event.kind in ("peermem-refused", "boot")), None)
    return f" ({last.text})" if last is not None and last.kind == "peermem-refused" else ""


@rule(
    id="gpudirect-storage-not-loaded",
    title="GPUDirect Storage is required, but its kernel module is not loaded",
    severity=Severity.WARNING,
    cause="gpudirect-storage-off",
    fix=(
        Advice(text="sudo modprobe nvidia-fs (at boot: a file in /etc/modules-load.d); its package is nvidia-fs, or nvidia-gds"),
        Advice(text='or let files be read through the host\'s memory: "allow_compat_mode": true in /etc/cufile.json'),
        Advice(text='or, for local NVMe drives, use the kernel\'s PCI P2PDMA: "use_pci_p2pdma": true in /etc/cufile.json'),
    ),
)
def gpudirect_storage_not_loaded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/etc/cufile.json forbids libcufile to fall back to host memory, and nvidia-fs, which the direct path needs, is not loaded.

    Why it matters
        cuFileDriverOpen, and every cuFile read and write (DALI, kvikio, checkpoint libraries), fails with error 5001 instead of
        just being slower. By default libcufile falls back, and nothing is reported here.

    When to leave it
        No program here uses cuFile, or those that do get another file from CUFILE_ENV_PATH_JSON.

    References
        https://docs.nvidia.com/gpudirect-storage/api-reference-guide/topics/cufile-compatibility.html (allow_compat_mode; nvidia-fs.ko not loaded)
        https://docs.nvidia.com/deploy/gds-support-for-nvme/setting-cufilejson-configuration.html (use_pci_p2pdma)
    """
    gpu_addresses(s)
    require_module(s)
    demanded = need(s.driver).direct_storage_only
    need_any(demanded, "libcufile may read through the host's memory, or by the kernel's PCI P2PDMA")
    loaded = need(need(s.driver).storage_loaded)
    yield Evidence(
        subject="GPUDirect Storage",
        seen="nvidia-fs is loaded" if loaded else "nvidia-fs is not loaded, and /etc/cufile.json has allow_compat_mode false",
        wanted="nvidia-fs, or a way without it",
        verdict=Verdict.PASS if loaded else Verdict.FAIL,
        source="/etc/cufile.json, /proc/modules",
    )
