"""Other packages that training needs: compiler, headers, RDMA, numactl, containers; each only if something on the host needs it."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Action, Driver, InstallFile, InstallOptions, InstallStep, Wheel
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as value
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install import trust
from torchtune_sys.remediation.install.fabric import needs_fabric
from torchtune_sys.remediation.install.gpus import cards
from torchtune_sys.remediation.install.host import fails, packaged_pythons
from torchtune_sys.remediation.install.interpreter import Interpreter
from torchtune_sys.remediation.install.interpreter import steps as python_steps
from torchtune_sys.remediation.install.site import Site, install, root


def before(s: Snapshot, site: Site, python: Interpreter, options: InstallOptions, wheel: Wheel | None) -> Iterator[InstallStep]:
    """Yield what comes before torch is installed."""
    if wheel is not None and python.package is not None:
        yield from python_steps(site, python.package)
    elif wheel is not None:
        yield from _venv(site, python, options)
    yield from _compiler(s, site, python, wheel)
    nodes = s.numa if isinstance(s.numa, Missing) else s.numa.nodes
    several = "a board with NVSwitches has two processors" if needs_fabric(cards(s)) else ""
    if not isinstance(nodes, Missing):
        several = f"{len(nodes)} NUMA nodes" if len(nodes) > 1 else ""
    if several:
        yield from _packages(site, "numactl", "numactl", f"{several}: it places processes and their memory", "numactl(8)")


def _packages(site: Site, purpose: str, title: str, why: str, source: str, optional: bool = False) -> Iterator[InstallStep]:
    found = known.packages(site.system.family, purpose)
    page = "" if found is not None else "no source on record names this distribution's package"
    actions = () if found is None else (install(site, *found.names),)
    sources = source if found is None else f"{source}; {found.source}"
    yield InstallStep(key=purpose, title=title, actions=actions, why=why, source=sources, by_hand=page, optional=optional)


def _venv(site: Site, python: Interpreter, options: InstallOptions) -> Iterator[InstallStep]:
    """Debian and Ubuntu split venv off; elsewhere it comes with Python."""
    if site.system.manager == "apt" and options.tool == "pip" and python.is_here and python.program.startswith("/usr/bin/"):
        yield from _packages(
            site, "python-venv", "venv of the system's Python", "an environment is made with it", "PEP 668; README.Debian"
        )


def _compiler(s: Snapshot, site: Site, python: Interpreter, wheel: Wheel | None) -> Iterator[InstallStep]:
    """For a torch that is put in, and for one that is there where it lacks them."""
    facts = s.python
    lacks = isinstance(facts, Missing) or not isinstance(facts.compiler, str)
    # On the CPU inductor builds C++ (torch/_inductor/config.py, cpp.cxx), and whether g++ is there was not looked for.
    wanted = wheel is not None and (lacks or wheel.build == "cpu")
    if wanted or fails(s, "c-compiler-missing", "c-library-headers-missing"):
        yield from _packages(site, "compiler", "a C and C++ compiler", "torch.compile builds with them", known.TRITON)
    if not python.is_here or not python.program.startswith("/usr/bin/"):
        return  # uv's, conda's and python.org's own builds come with their headers
    unseen = not isinstance(facts, Missing) and facts.headers is not True
    if wheel is None and not fails(s, "python-headers-missing"):
        return
    if python.package is None and not ((unseen and wheel is not None) or fails(s, "python-headers-missing")):
        return
    own = next((item for item in packaged_pythons(s) if item.program == python.program), python.package)
    why = "torch.compile builds against Python.h"
    if own is None:
        yield from _packages(site, "python-headers", "Python's headers", why, known.TRITON)
    else:
        source = f"{known.TRITON}; {own.source}"
        action = install(site, *own.headers)
        yield InstallStep(key="python-headers", title="Python's headers", actions=(action,), why=why, source=source)


def after(s: Snapshot, site: Site, driver: Driver | None, options: InstallOptions, wheel: Wheel | None) -> Iterator[InstallStep]:
    """Yield what does not wait for torch, nor torch for it."""
    yield from _rdma(s, site, driver, "rdma" in options.extras)
    yield from _containers(s, site, driver, "container-toolkit" in options.extras)
    if wheel is not None and (wheel.build == "cpu" or "jemalloc" in options.extras):
        why = "for CPU tensors: freed memory is taken again; torchtune-sys generate env says how to preload it, measure it"
        yield from _packages(site, "jemalloc", "jemalloc", why, known.TUNING_GUIDE, optional=True)
    if "cuda-toolkit" in options.extras and wheel is not None and wheel.build.startswith("cu"):
        yield from _toolkit(site, wheel)


def _rdma(s: Snapshot, site: Site, driver: Driver | None, wanted: bool) -> Iterator[InstallStep]:
    there = not isinstance(s.network, Missing) and not isinstance(s.network.rdma, Missing) and bool(s.network.rdma)
    if not there and not wanted:
        return
    why = "NCCL reaches RDMA cards through libibverbs, else it takes TCP (DOCA-OFED and the EFA installer bring their own)"
    in_use = driver is not None and bool(driver.installed) and not wanted
    yield from _packages(site, "rdma", "the user space of RDMA", why, "NCCL user guide, Networking", optional=in_use)
    if driver is None or _dma_buf(driver, site.kernel):
        return
    path = "/etc/modules-load.d/torchtune-sys-peermem.conf"
    yield InstallStep(
        key="peermem",
        title="nvidia-peermem, for GPUDirect RDMA",
        actions=(
            InstallFile(path=path, text="# Written by torchtune-sys generate install.\nnvidia-peermem\n", root=True),
            *((root("modprobe", "nvidia-peermem"),) if driver.installed else ()),
        ),
        why=f"DMA-BUF needs the open module and Linux 5.12: here it is the {driver.module} one on {site.kernel or 'an unseen kernel'}",
        source="https://docs.nvidia.com/cuda/gpudirect-rdma/",
    )


def _dma_buf(driver: Driver, kernel: str) -> bool:
    return driver.module == "open" and version(kernel) >= (5, 12)


def _containers(s: Snapshot, site: Site, driver: Driver | None, wanted: bool) -> Iterator[InstallStep]:
    software = s.software
    names = () if isinstance(software, Missing) else tuple(item.name for item in value(software.packages, ()))
    docker = not isinstance(software, Missing) and software.docker is True
    if driver is None or "nvidia-container-toolkit" in names or not (docker or wanted):
        return
    found = known.packages(site.system.family, "container-toolkit")
    then = (
        (root("nvidia-ctk", "runtime", "configure", "--runtime=docker"), root("systemctl", "restart", "docker")) if docker else ()
    )
    yield InstallStep(
        key="container-toolkit",
        title="nvidia-container-toolkit",
        actions=(*_container_repository(site), install(site, *found.names), *then) if found else (),
        why="docker run --gpus (and Podman's CDI) hand the GPUs to containers with it; it restarts Docker, and with it containers"
        if docker
        else "containers get the GPUs with it",
        source=known.CONTAINER_GUIDE,
        by_hand="" if found else known.CONTAINER_GUIDE,
        optional=not wanted,
    )


def _container_repository(site: Site) -> tuple[Action, ...]:
    """NVIDIA's repository of driver packages has the toolkit, too; this one has it for every distribution of a kind."""
    url, key = known.CONTAINER_TOOLKIT, known.key("container-toolkit")
    if key is None or site.system.manager not in ("apt", "dnf", "zypper"):
        return ()
    name = "nvidia-container-toolkit"
    if site.system.manager == "apt":
        place = f"/etc/apt/sources.list.d/{name}.list"
        return (*trust.of_apt(site, key, f"{name}-keyring", place, f"{url}/stable/deb/$(ARCH)"), root("apt-get", "update"))
    kept = f"torchtune-sys-{name}.asc"
    text = trust.repo(name, f"{url}/stable/rpm/$basearch", kept, signed="metadata")
    return trust.of_rpm(site, key, kept, name, text)


def _toolkit(site: Site, wheel: Wheel) -> Iterator[InstallStep]:
    number = f"{wheel.build[2:-1]}-{wheel.build[-1]}"
    found = known.packages(site.system.family, "toolkit", toolkit=number)
    yield InstallStep(
        key="cuda-toolkit",
        title=f"CUDA toolkit {number.replace('-', '.')}, for nvcc",
        actions=() if found is None else (install(site, *found.names),),
        why="only extensions that are compiled here need it, with the CUDA that torch was built with; torch's wheels bring their own",
        source=known.DRIVER_GUIDE if found is None else found.source,
        by_hand="" if found else "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/",
        optional=True,
    )
