"""A virtual machine with two NUMA nodes and a slow PCIe link: Debian's kernel in QEMU without KVM, and our own process 1.

Installs (apt) or downloads what it needs; ``Unavailable`` says what could not be had.
"""

from __future__ import annotations

import glob
import lzma
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
DEADLINE_S = 900.0
EMULATED = "no_timer_check mitigations=off"
"""Kernel arguments of an emulated machine: on a busy host its timer's interrupt comes too late for the kernel's check at start, which
then panics ("IO-APIC + timer doesn't work"); and code that guards against side channels costs the emulator most of its time."""
PACKAGES = {"qemu-system-x86": "qemu-system-x86_64", "busybox-static": "busybox", "e2fsprogs": "mkfs.ext4", "dmsetup": "dmsetup"}
MODULES = ("md-mod", "raid1", "dax", "dm-mod")
"""In the order in which they need each other; what is built in is passed over."""


class Unavailable(Exception):
    """What keeps the machine from being made here."""


class Failed(Exception):
    """The machine was made and did not do what it should."""


def boot(folder: Path) -> Path:
    """Boot once in ``folder`` and return the tar file that the guest wrote. Raises Unavailable or Failed."""
    if os.uname().machine != "x86_64":
        raise Unavailable(f"the guest is x86-64, this machine {os.uname().machine}")
    install()
    made_of = parts(folder)
    out, initramfs = folder / "out.tar", folder / "initramfs"
    images = {"out": out, "data": folder / "data.img", "half": folder / "half.img"}
    for image, size in zip(images.values(), (256 << 20, 4 << 30, 64 << 20), strict=True):
        with image.open("wb") as file:
            file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", str(images["data"]))
    _run("mkfs.ext4", "-q", "-F", str(images["half"]), "48M")  # md's version 1.0 keeps its own data at the end
    programs = [made_of / "mdadm", Path(str(which("dmsetup")))]
    modules = [made_of / f"{name}.ko" for name in MODULES if (made_of / f"{name}.ko").exists()]
    initramfs.write_bytes(archive(HERE / "guest-init", programs, modules))
    run(_machine(made_of / "vmlinuz", initramfs, images), folder / "console", DEADLINE_S)
    for path in (initramfs, images["data"], images["half"]):
        path.unlink()
    return out


def run(argv: tuple[str, ...], console: Path, deadline_s: float) -> None:
    """QEMU until the guest powers off, its words in ``console``. Raises Failed if the guest was not done by then.

    ``timeout`` ends QEMU even where the tests are killed first; it hands on a SIGTERM, and could not a SIGKILL.
    """
    bounded = ("timeout", "-k", "5", f"{deadline_s:.0f}", *argv)
    with (
        console.open("wb") as log,
        subprocess.Popen(bounded, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL) as running,
    ):
        try:
            status = running.wait()
        except BaseException:  # Ctrl-C
            running.terminate()
            raise
    said = console.read_bytes()
    if b"GUEST-DONE" not in said:
        why = f"not done within {deadline_s:.0f} s" if status in (124, 137) else f"qemu ended with {status}"
        raise Failed(f"{why}:\n{said[-3000:].decode('utf-8', 'replace')}")


def _machine(kernel: Path, initramfs: Path, images: dict[str, Path]) -> tuple[str, ...]:
    """Node 0 has CPUs 0-1 and 0.5 GiB, node 1 CPUs 2-3 and 1 GiB; the data disk hangs on node 1, below a port that could do
    16 GT/s x16 and negotiates what QEMU's NVMe offers: 2.5 GT/s x1. The machine passes for bare metal, since links and slots
    of virtual machines are not judged."""
    return (
        *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-hypervisor,-la57"),
        *("-smbios", "type=0,vendor=AMI,version=2.1", "-smbios", "type=1,manufacturer=Supermicro,product=SYS-421GE"),
        *("-smp", "4,sockets=2,cores=2,threads=1", "-m", "1536M"),
        *("-object", "memory-backend-ram,id=m0,size=512M", "-object", "memory-backend-ram,id=m1,size=1024M"),
        *("-numa", "node,nodeid=0,cpus=0-1,memdev=m0", "-numa", "node,nodeid=1,cpus=2-3,memdev=m1"),
        *("-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=1,dst=0,val=21"),
        *("-device", "pxb-pcie,id=pxb,bus=pcie.0,bus_nr=64,numa_node=1"),
        *("-device", "pcie-root-port,id=slow,bus=pxb,chassis=1,slot=1,x-speed=16,x-width=16"),
        *(word for name, image in images.items() for word in ("-drive", f"file={image},format=raw,if=none,id={name}")),
        *("-device", "nvme,drive=data,serial=data,bus=slow"),
        *("-device", "nvme,drive=out,serial=out,bus=pcie.0", "-device", "nvme,drive=half,serial=half,bus=pcie.0"),
        *(
            "-kernel",
            str(kernel),
            "-initrd",
            str(initramfs),
            "-append",
            f"console=ttyS0 quiet nokaslr nosoftlockup rcupdate.rcu_cpu_stall_suppress=1 panic=-1 rdinit=/init {EMULATED}",
        ),
        *("-nic", "none", "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"),
    )


# --- what it is made of -----------------------------------------------------------------------------------------------


def install() -> None:
    missing = [package for package, tool in PACKAGES.items() if not which(tool)]
    if not missing:
        return
    if which("apt-get") is None or os.geteuid() != 0:
        raise Unavailable(f"not installed: {', '.join(missing)} (needs root and apt-get)")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (("update", "-q"), ("install", "-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *missing)):
        done = subprocess.run(("apt-get", *argv), env=env, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode and argv[0] == "install":
            raise Unavailable(f"apt-get could not install {', '.join(missing)}: {done.stderr.strip()[-300:]}")


def parts(folder: Path) -> Path:
    """A folder with Debian's kernel for virtual machines (NVMe and ext4 are built into it), its modules for md and
    device-mapper, and mdadm: taken out of their packages, not installed, and kept for the next time."""
    if which("apt-get") is None or which("dpkg-deb") is None:
        raise Unavailable("no Debian kernel: this needs apt-get and dpkg-deb")
    kernel = kernel_package("linux-image-cloud-amd64")
    cache = cached(kernel)
    if cache.is_dir():
        return cache
    unpacked, taken = unpack(folder, kernel, "mdadm"), folder / "parts"
    taken.mkdir()
    shutil.copy(next((unpacked / "boot").glob("vmlinuz-*")), taken / "vmlinuz")
    shutil.copy(next(unpacked.glob("**/sbin/mdadm")), taken / "mdadm")
    for module in MODULES:
        take_module(unpacked, module, taken)
    return keep(taken, unpacked, cache)


def kernel_package(meta: str) -> str:
    """The package with the kernel itself that ``meta`` stands for."""
    depends = _run("apt-cache", "depends", "--important", meta)
    names = [word for word in depends.split() if word.startswith("linux-image-") and word[12:13].isdigit()]
    if not names:
        raise Unavailable(f"apt knows no {meta}")
    return names[0]


def cached(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchtune-sys-tests" / name


def unpack(folder: Path, *packages: str) -> Path:
    """The packages' files in a folder of ``folder``; nothing is installed."""
    unpacked = folder / "unpacked"
    for package in packages:
        _run("apt-get", "download", "-q", package, cwd=folder, timeout_s=300)
        _run("dpkg-deb", "-x", glob.glob(f"{folder}/{package}_*.deb")[0], str(unpacked))
    return unpacked


def take_module(unpacked: Path, name: str, taken: Path) -> Path | None:
    """The kernel module, uncompressed; None if it is built into the kernel."""
    for path in unpacked.glob(f"lib/modules/**/{name}.ko*"):
        content = path.read_bytes()
        target = taken / f"{name}.ko"
        target.write_bytes(lzma.decompress(content) if path.suffix == ".xz" else content)
        return target
    return None


def keep(taken: Path, unpacked: Path, cache: Path) -> Path:
    draft = cache.with_name(f"{cache.name}.{os.getpid()}")
    draft.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(taken, draft)
    try:
        draft.rename(cache)
    except OSError:  # another test was first
        shutil.rmtree(draft)
    shutil.rmtree(unpacked)
    return cache


def which(tool: str) -> str | None:
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _run(*argv: str, cwd: Path | None = None, timeout_s: float = 60) -> str:
    try:
        done = subprocess.run((which(argv[0]) or argv[0], *argv[1:]), cwd=cwd, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(argv[:3])}: {error}") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(argv[:3])}: {done.stderr.strip()[-300:]}")
    return done.stdout


# --- the guest's root file system, as a cpio archive ------------------------------------------------------------------


def archive(init: Path, programs: list[Path], modules: list[Path], shipped: Path | None = None) -> bytes:
    """``init`` as process 1, busybox, this interpreter with our packages, ``programs`` in /sbin, and a script that starts them.

    ``modules`` are loaded in this order. Libraries are looked for below ``shipped`` too.
    """
    busybox = which("busybox")
    if busybox is None:
        raise Unavailable("busybox-static is not installed")
    files = {"/init": (init, 0o755), "/bin/busybox": (Path(busybox), 0o755), "/bin/sh": (Path(busybox), 0o755)}
    files |= {f"/sbin/{program.name}": (program, 0o755) for program in programs}
    files |= {f"/modules/{path.name}": (path, 0o644) for path in modules}
    start = _python(files, shipped) + "".join(f"insmod /modules/{path.name}\n" for path in modules)
    members = [_entry("/guest-parts", start.encode(), stat.S_IFREG | 0o755, 0)]
    members += [_entry("/dev/console", b"", stat.S_IFCHR | 0o600, 0, device=(5, 1))]
    folders = {str(parent) for name in (*files, "/dev/x") for parent in Path(name).parents if str(parent) != "/"}
    made = [_entry(name, b"", stat.S_IFDIR | 0o755, 0) for name in sorted(folders)]
    for name, (path, mode) in sorted(files.items()):
        members.append(_entry(name, path.read_bytes(), stat.S_IFREG | mode, int(path.stat().st_mtime)))
    return b"".join((*made, *members, _entry("TRAILER!!!", b"", 0, 0)))


def _entry(name: str, content: bytes, mode: int, mtime: int, device: tuple[int, int] = (0, 0)) -> bytes:
    """One member in the format "newc" (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    path = name.lstrip("/").encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, mtime, len(content), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)


_LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "pydoc_data",
    "dist-packages",
    "distutils",
    "unittest",
}
_PACKAGES = "/opt/packages"
_LEFT_OUT_FILES = (".a", ".exe", ".opt-1.pyc", ".opt-2.pyc", ".pyi")


def _python(files: dict[str, tuple[Path, int]], shipped: Path | None) -> str:
    """Add this interpreter and its library at their places, and our packages below /opt; return how to start them.

    The packages' own place may be one that the guest mounts over (a checkout below /tmp).
    """
    import torchtune_sys

    executable = Path(sys.executable).resolve()
    library = Path(os.__file__).parent
    packages = Path(torchtune_sys.__file__).parent
    roots = [library, packages]
    for module in ("click", "msgspec", "distro", "psutil", "jinja2", "markupsafe"):
        origin = __import__(module).__file__
        roots.append(Path(str(origin)).parent)
    wanted: dict[str, Path] = {str(executable): executable}
    for root in roots:
        target = library if root == library else Path(_PACKAGES, root.name)
        for folder, names, found in os.walk(root):
            names[:] = [name for name in names if name not in _LEFT_OUT and not name.startswith("config-")]
            wanted |= {
                str(target / (Path(folder) / name).relative_to(root)): Path(folder) / name
                for name in found
                if not name.endswith(_LEFT_OUT_FILES) and not name.startswith(("_test", "_tkinter", "_ctypes_test"))
            }
    for place, path in wanted.items():
        files[place] = (path, path.stat().st_mode & 0o777)
    programs = [path for name, (path, _) in files.items() if name.startswith("/sbin/")]
    extensions = [path for path in wanted.values() if path.suffix == ".so" or ".so." in path.name]
    for place, library_file in _libraries([executable, *programs, *extensions], shipped).items():
        files.setdefault(place, (library_file, 0o755))
    home = library.parent.parent
    return (
        f"export PYTHONHOME={home} PYTHONPATH={_PACKAGES}:{library} PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH={home}/lib\n"
        f'torchtune_sys() {{ {executable} -m torchtune_sys "$@" --python {executable}; }}\n'
    )


def _libraries(binaries: list[Path], shipped: Path | None) -> dict[str, Path]:
    """Place in the guest → file here of the libraries that ``binaries`` load; those out of ``shipped`` lie in its /lib."""
    places = sorted({str(path.parent) for path in shipped.glob("**/*.so.*")}) if shipped else []
    env = {**os.environ, **({"LD_LIBRARY_PATH": ":".join(places)} if places else {})}
    told = subprocess.run(("ldd", *map(str, binaries)), env=env, capture_output=True, text=True, timeout=60, check=False).stdout
    lost = {line.split()[0] for line in told.splitlines() if line.endswith("not found") and "lib" in line} if shipped else set()
    if lost:
        raise Unavailable(f"libraries are not here: {', '.join(sorted(lost))}")
    words = {word for line in told.splitlines() for word in line.split() if word.startswith("/") and not word.endswith(":")}
    found = {word: Path(word) for word in words if os.path.exists(word)}
    return {f"/lib/{path.name}" if shipped and path.is_relative_to(shipped) else word: path for word, path in found.items()}


if __name__ == "__main__":
    started = time.monotonic()
    print(boot(Path(sys.argv[1])), f"{time.monotonic() - started:.1f} s")
