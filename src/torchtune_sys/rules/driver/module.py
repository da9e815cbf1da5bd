"""Rules on NVIDIA's kernel module: is it loaded, does it match its libraries."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Install, KernelArgument, Needs, Safety
from torchtune_sys.model.facts.python import CudaLibrary
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.driver import common as driver_state
from torchtune_sys.rules.torch.common import cuda_works

_MODULES = "/proc/modules, /proc/driver/nvidia/version"


def _loaded_or(s: Snapshot, reason: str, seen: str, wanted: str, source: str = _MODULES) -> Iterator[Evidence]:
    """Fails where ``reason`` is what keeps the module from being loaded."""
    state = driver_state.why_no_module(s)
    if state == "loaded":
        yield Evidence(subject="nvidia", seen="the kernel module is loaded", wanted=wanted, verdict=Verdict.PASS, source=_MODULES)
    elif state == reason:
        yield Evidence(subject="nvidia", seen=seen, wanted=wanted, source=source)
    else:
        raise NotApplicable("the kernel module is not loaded for another reason")


@rule(
    id="no-nvidia-driver",
    title="There is an NVIDIA GPU but no NVIDIA driver",
    severity=Severity.ERROR,
    cause="no-nvidia-driver",
    fix=(Install(text="install the NVIDIA driver from the distribution or from NVIDIA's repository", needs=Needs.REBOOT),),
)
def no_nvidia_driver(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPU is on the PCI bus, but neither a kernel module nor a user-space library of the driver is installed; under WSL: the NVIDIA driver of Windows
    brings no CUDA library for Linux.

    Why it matters
        Without the driver, torch.cuda.is_available() is False and training runs on the CPU.

    When to leave it
        The GPU is used only for a display, or training runs elsewhere.

    References
        https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/; https://docs.nvidia.com/cuda/wsl-user-guide/
    """
    if known(need(s.driver).wsl_without_cuda, False):
        yield Evidence(
            subject="Windows",
            seen="files of an NVIDIA driver in /usr/lib/wsl/drivers, and no libcuda.so.1 in /usr/lib/wsl/lib",
            wanted="a driver that supports WSL",
            source="/usr/lib/wsl/lib",
            fix=(
                Install(
                    text="install NVIDIA's current driver in Windows, none in the guest; then wsl --shutdown", needs=Needs.REBOOT
                ),
            ),
        )
        return
    addresses = ", ".join(driver_state.gpu_addresses(s))
    yield from _loaded_or(s, "no-driver", f"GPU at {addresses}, no module and no libcuda.so.1", "an installed driver")


@rule(
    id="nouveau-loaded",
    title="nouveau has claimed the GPU, so the NVIDIA driver cannot use it",
    severity=Severity.ERROR,
    cause="nouveau-loaded",
    fix=(
        KernelArgument(argument="modprobe.blacklist=nouveau"),
        Advice(text='put "blacklist nouveau" into /etc/modprobe.d/, rebuild the initramfs and reboot', needs=Needs.REBOOT),
    ),
)
def nouveau_loaded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The open-source driver nouveau (or its successor nova_core) is bound to an NVIDIA GPU; it does not support CUDA.

    Why it matters
        Only one driver can be bound to a device: nvidia.ko refuses to load or finds no GPU. If nouveau is blacklisted only in the
        initramfs (rd.driver.blacklist), it is loaded later.

    When to leave it
        The GPU is used only for a display. One that the NVIDIA driver here cannot serve, beside others that it does, is not reported.

    References
        https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/#disabling-nouveau
    """
    addresses = driver_state.gpu_addresses(s)
    if need(need(s.driver).nouveau_loaded):
        need(need(s.pci).devices)  # loaded alone it harms nothing: another display card may be its own
    displays = driver_state.display_cards(s)
    barred = known(need(s.driver).nouveau_barred, False)
    for address in addresses:
        bound = driver_state.bound_driver(s, address)
        bad = bound in driver_state.OF_NOUVEAU and address not in displays
        yield Evidence(
            subject=f"GPU {address}",
            seen=f"bound to {bound}" if bound else "bound to no driver",
            wanted="bound to nvidia",
            verdict=Verdict.FAIL if bad else Verdict.PASS,
            source=f"/sys/bus/pci/devices/{address}/driver",
            fix=() if not bad else _WITHOUT_NOVA if bound != "nouveau" else _BARRED if barred else (),
        )


_BARRED = (
    Advice(
        text="nouveau is barred already, and was loaded before that or from the initramfs: rebuild it (sudo update-initramfs -u; sudo "
        "dracut -f; sudo mkinitcpio -P) and reboot",
        needs=Needs.REBOOT,
    ),
)
_WITHOUT_NOVA = (
    KernelArgument(argument="modprobe.blacklist=nova_core"),
    Advice(text='put "blacklist nova_core" into /etc/modprobe.d/, rebuild the initramfs and reboot', needs=Needs.REBOOT),
)


@rule(
    id="nvidia-module-not-built-for-kernel",
    title="The running kernel has no NVIDIA module, though the driver is installed",
    severity=Severity.ERROR,
    cause="nvidia-module-not-built-for-kernel",
    fix=(
        Install(
            text="install the headers of the running kernel, then build the module: dkms autoinstall (or dnf/zypper/apt reinstall)",
        ),
        Advice(text="or boot the kernel that the module was built for", needs=Needs.REBOOT),
    ),
)
def nvidia_module_not_built_for_kernel(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver's libraries are installed, but /lib/modules has no nvidia.ko for the running kernel.

    Why it matters
        After a kernel update the module must be rebuilt. DKMS fails silently if the kernel headers are missing or the driver is
        too old for the kernel. nvidia-smi then says that it cannot communicate with the driver.

    When to leave it
        Never, if you train with this kernel.

    References
        dkms(8)
        https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
    """
    failed = need(s.driver).build_failure
    if not isinstance(failed, Missing) and not _serves(s):
        yield Evidence(
            subject="nvidia", seen=f"DKMS could not build it for {failed}", wanted="a module built for it", source="DKMS"
        )
        return
    name = known(need(s.system).kernel, "the running kernel")
    yield from _loaded_or(s, "not-built", f"no nvidia.ko for {name}", "a module built for it", "/lib/modules/*/modules.dep")


def _serves(s: Snapshot) -> bool:
    """Whether the driver serves GPUs: then the failed build was for another kernel."""
    return not isinstance(s.gpu, Missing) and not isinstance(s.gpu.devices, Missing) and bool(s.gpu.devices)


@rule(
    id="secure-boot-blocks-module",
    title="Secure Boot is on and the NVIDIA module is not loaded",
    severity=Severity.ERROR,
    cause="secure-boot-blocks-module",
    fix=(
        Advice(
            text="enrol the key that DKMS signs with: mokutil --import /var/lib/dkms/mok.pub (Ubuntu: "
            "/var/lib/shim-signed/mok/MOK.der; akmods of Fedora: /etc/pki/akmods/certs/public_key.der)",
            needs=Needs.REBOOT,
        ),
        Advice(text="or install a module that the distribution has signed, or turn Secure Boot off in the firmware"),
    ),
)
def secure_boot_blocks_module(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The module is built for the running kernel but not loaded, and Secure Boot refuses modules with an unknown signature.

    Why it matters
        modprobe nvidia fails with "Key was rejected by service", and no CUDA program sees a GPU.

    When to leave it
        dmesg shows another reason why the module is not loaded.

    References
        https://wiki.ubuntu.com/UEFI/SecureBoot
        mokutil(1)
    """
    yield from _loaded_or(
        s, "secure-boot", "Secure Boot is on, nvidia.ko exists and is not loaded", "a module signed with an enrolled key"
    )


@rule(
    id="nvidia-driver-not-loaded",
    title="The NVIDIA driver is installed but its kernel module is not loaded",
    severity=Severity.ERROR,
    explained_by=(
        "nouveau-loaded",
        "nvidia-module-not-built-for-kernel",
        "driver-ignores-gpu",
        "gpu-needs-proprietary-module",
        "gpu-bar-not-assigned",
        "gsp-firmware-missing",
        "module-signature-refused",
        "module-of-another-kernel-refused",
    ),
    fix=(
        Advice(
            text="sudo modprobe nvidia; if that fails, dmesg | grep -i -e nvrm -e nvidia shows why", safety=Safety.DISPLAY_ONLY
        ),
        Advice(text="a file of modprobe.d that keeps it out: prime-select nvidia, or delete its lines; rebuild the initramfs"),
    ),
)
def nvidia_driver_not_loaded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver's libraries and, as far as can be seen, its kernel module are installed, but the module is not loaded.

    Why it matters
        nvidia-smi "couldn't communicate with the NVIDIA driver", and CUDA finds no device.

    When to leave it
        The GPU is powered off on purpose (hybrid graphics).

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (NVML_ERROR_DRIVER_NOT_LOADED)
    """
    if driver_state.nvml_error(s) == "DRIVER_NOT_LOADED" and need(s.gpu).source == "report":
        yield Evidence(
            subject="nvidia",
            seen="nvidia-smi cannot communicate with the driver",
            wanted="a loaded kernel module",
            source="nvidia-smi",
        )
        return
    yield from _loaded_or(
        s, "not-loaded", f"the driver's libraries are here, {driver_state.kept_out(s)}", "a loaded kernel module"
    )


@rule(
    id="nvml-driver-library-mismatch",
    title="The loaded kernel module and the driver's libraries have different versions",
    severity=Severity.ERROR,
    cause="nvml-driver-library-mismatch",
    fix=(
        Advice(
            text="reboot; or stop every process that uses a GPU, unload the nvidia modules and load the new ones",
            needs=Needs.REBOOT,
        ),
        Advice(text="hold the driver's packages (apt-mark hold, dnf versionlock) so that unattended upgrades do not split them"),
    ),
)
def nvml_driver_library_mismatch(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A package upgrade replaced the libraries while the old kernel module stayed loaded, or libcuda.so.1 is another
    installation's, or that of a cuda-compat package older than the module; NVML or CUDA refuse to work.

    Why it matters
        nvidia-smi says "Driver/library version mismatch", and every new CUDA program fails at startup. Programs that are already
        running continue, so the problem shows up only with the next job.

    When to leave it
        Never.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
        https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html (a newer libcuda on an older module, not the other way)
    """
    wanted = "the same version"
    if driver_state.nvml_error(s) == "LIB_RM_VERSION_MISMATCH":
        yield Evidence(subject="driver", seen=_both(s), wanted=wanted, source=need(s.gpu).source)
    elif not isinstance(s.gpu, Missing) and not isinstance(s.gpu.devices, Missing):
        if not s.gpu.devices:
            driver_state.gpu_addresses(s)
        apart = () if isinstance(s.driver, Missing) or s.driver.wsl is True else known(s.driver.libraries_apart, ())
        if len(apart) > 1:
            seen = f"of driver {apart[0]}, beside a libnvidia-ml.so.1 of driver {apart[1]}, with which NVML works"
            yield Evidence(subject="libcuda.so.1", seen=seen, wanted=wanted, source=(*known(need(s.driver).libcuda, ()), "")[0])
        elif older := _older_compat(s):
            yield Evidence(
                subject="libcuda.so.1",
                seen=f"{older.path} ({older.version}), which LD_LIBRARY_PATH puts first, is older than the loaded module",
                wanted="that of the driver, or a newer one",
                source="LD_LIBRARY_PATH",
                fix=(
                    Advice(
                        text="take this directory out of LD_LIBRARY_PATH, or remove the cuda-compat package: this driver needs none"
                    ),
                ),
            )
        else:
            yield Evidence(subject="driver", seen="NVML works", wanted=wanted, verdict=Verdict.PASS, source="NVML")
    else:
        if need(s.driver).wsl is True:
            need(need(s.gpu).devices)  # Windows has the GPU and the module: NVML alone tells
        driver_state.gpu_addresses(s)
        driver_state.require_module(s)
        module, library = need(need(s.driver).module_version), need(need(s.driver).library_version)
        verdict = Verdict.PASS if version(module) == version(library) else Verdict.FAIL
        yield Evidence(subject="driver", seen=_both(s), wanted=wanted, verdict=verdict, source="/proc/driver/nvidia/version")


def _older_compat(s: Snapshot) -> CudaLibrary | None:
    """Return the libcuda of a cuda-compat package that is found first, where the module is newer: it serves older modules alone (error 803)."""
    if isinstance(s.python, Missing) or isinstance(s.driver, Missing) or cuda_works(s):
        return None
    module = version(known(s.driver.module_version, ""))
    found = [one for one in known(s.python.shadowing, ()) if one.name == "libcuda"]
    first = next((one for one in found if one.abi == "1"), None)
    folder = "" if first is None else first.path.rpartition("/")[0]
    if "/compat" not in folder:
        return None
    beside = (one for one in found if one.path.rpartition("/")[0] == folder)
    return next((one for one in beside if () < version(one.version) < module), None)


def _both(s: Snapshot) -> str:
    module = s.driver if isinstance(s.driver, Missing) else s.driver.module_version
    library = s.driver if isinstance(s.driver, Missing) else s.driver.library_version
    if isinstance(library, Missing) and not isinstance(s.gpu, Missing):
        library = s.gpu.library_version
    return " and ".join(
        f"{name} {value}" if not isinstance(value, Missing) else f"{name} of another version"
        for name, value in (("module", module), ("libraries", library))
    )
