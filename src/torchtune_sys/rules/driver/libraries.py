"""The driver's libraries: which ones the loader takes."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, known_or_unknown, need, need_any, need_if_there
from torchtune_sys.rules import gates
from torchtune_sys.rules.driver.common import container


@rule(
    id="cuda-stub-library-loaded",
    title="The loader finds CUDA's stub library instead of the driver's",
    severity=Severity.ERROR,
    cause="cuda-stub-library-loaded",
    fix=(
        Advice(text="remove the .../stubs directory from LD_LIBRARY_PATH and /etc/ld.so.conf.d; it is for linking only"),
        EnvironmentVariable(name="LD_LIBRARY_PATH", value=None),
    ),
)
def cuda_stub_library_loaded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A directory named stubs that contains a libcuda.so.1 comes before the driver's on the loader's path.

    Why it matters
        The stub has every function and does nothing: cuInit returns error 34 (CUDA_ERROR_STUB_LIBRARY), and torch finds no GPU.

    When to leave it
        Only while building programs on a machine without a GPU.

    References
        https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html (CUDA_ERROR_STUB_LIBRARY)
    """
    gates.nvidia_hardware(s)
    listed = need(s.driver).libcuda
    known_or_unknown(need(s.driver).wsl, False)  # where it is looked for depends on that
    found = need_any(listed, "no libcuda.so.1 where the loader looks")
    stub = "/stubs/" in found[0]
    yield Evidence(
        subject="libcuda.so.1",
        seen=found[0],
        wanted="the driver's own library first",
        verdict=Verdict.FAIL if stub else Verdict.PASS,
        source="LD_LIBRARY_PATH, /etc/ld.so.conf.d",
    )


@rule(
    id="image-contains-driver-libraries",
    title="The image contains driver libraries of its own",
    severity=Severity.WARNING,
    cause="image-contains-driver-libraries",
    fix=(
        Advice(
            text="remove libcuda.so.*, libnvidia-*.so.* from the image (never install a driver in it, never commit a running container)"
        ),
    ),
)
def image_contains_driver_libraries(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """In the container, driver libraries of another version or of size 0 lie next to those that the toolkit mounts from the host.

    Why it matters
        The image's libraries collide with the mounted ones ("file exists", "Driver/library version mismatch") or are found first.

    When to leave it
        cuda-compat in its own directory is supposed to be there and is not counted.

    References
        https://github.com/NVIDIA/nvidia-container-toolkit/issues
    """
    gates.nvidia_hardware(s)
    if not container(s):
        raise NotApplicable("not in a container")
    if known_or_unknown(need(s.driver).wsl, False):
        raise NotApplicable("under WSL2 the driver is Windows'")
    module = need(need(s.driver).module_version)
    foreign = [number for number in need(need(s.driver).library_versions) if number != module]
    empty = need(need(s.driver).empty_libraries)
    words = [f"libraries of driver {number}" for number in foreign] + [f"{path} is empty" for path in empty[:4]]
    yield Evidence(
        subject="container image",
        seen=", ".join(words) or f"only libraries of driver {module}",
        wanted=f"only libraries of driver {module}",
        verdict=Verdict.FAIL if words else Verdict.PASS,
        source="the loader's directories",
    )


@rule(
    id="wsl-libcuda-link-missing",
    title="The loader does not take WSL's CUDA library",
    severity=Severity.WARNING,
    cause="wsl-libcuda-link-missing",
    fix=(
        Advice(text="echo /usr/lib/wsl/lib | sudo tee /etc/ld.so.conf.d/ld.wsl.conf; sudo ldconfig"),
        EnvironmentVariable(name="LD_LIBRARY_PATH", value="/usr/lib/wsl/lib"),
    ),
)
def wsl_libcuda_link_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Windows provides libcuda.so in /usr/lib/wsl/lib, but neither ld.so.conf.d nor LD_LIBRARY_PATH lists that directory; or a Linux driver's goes before it.

    Why it matters
        Programs that open libcuda.so by name (cuDNN, Triton, Numba) do not find it, although the GPU is available. A Linux
        driver's library finds no device in WSL: torch sees no GPU, and nvidia-smi, which is Windows', still works.

    When to leave it
        Nothing on this host uses CUDA. (Do not install a full NVIDIA driver inside WSL to work around this.)

    References
        https://docs.nvidia.com/cuda/wsl-user-guide/; https://github.com/NVIDIA/cuml/issues/6218 (a driver inside WSL)
    """
    driver = need(s.driver)
    if not need(driver.wsl):
        raise NotApplicable("not WSL with a GPU")
    named = need_if_there(driver.wsl_libraries_on_path, "Windows provides no CUDA library")
    yield Evidence(
        subject="/usr/lib/wsl/lib",
        seen="on the loader's path" if named else "not on the loader's path",
        wanted="on the loader's path",
        verdict=Verdict.PASS if named else Verdict.FAIL,
        source="/etc/ld.so.conf.d, LD_LIBRARY_PATH",
    )
    if named and len(known(driver.libcuda, ())) > 1 and not need(need(s.system).container):
        yield from _linux_drivers(s)


def _linux_drivers(s: Snapshot) -> Iterator[Evidence]:
    """Tell whether torch is given the library of a Linux driver (libcuda.so.580.95.05); Windows' is libcuda.so.1.1."""
    loader = s.python if isinstance(s.python, Missing) else s.python.loader
    if isinstance(loader, Missing):
        if loader.why is not Why.ABSENT:
            yield unsure("libcuda.so.1", loader)
        return
    for choice in loader:
        path, branch = known(choice.path, ""), choice.version.partition(".")[0]
        if choice.name == "libcuda.so.1" and len(branch) == 3 and natural(branch) is not None and "/compat" not in path:
            yield Evidence(
                subject="libcuda.so.1",
                seen=f"{path}, of a Linux driver ({choice.version})",
                wanted="that of /usr/lib/wsl/lib, which Windows provides",
                source=choice.found_by,
                fix=(
                    Advice(
                        text="remove the NVIDIA driver's packages from this distribution (libnvidia-compute-…), not from Windows"
                    ),
                    EnvironmentVariable(name="LD_LIBRARY_PATH", value="/usr/lib/wsl/lib"),
                ),
            )
