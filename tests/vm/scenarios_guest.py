"""A virtual machine without a fault, to which one fault after another is given: Debian's general kernel (that for clouds lacks
soft-RoCE and SATA), two NUMA nodes, two disks that say they spin, and the real cryptsetup and LVM."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
from pathlib import Path

import guest

DEADLINE_S = 900.0
TOOLS = ("cryptsetup-bin", "lvm2")
WANTED = (
    "nvme",
    "ext4",
    "ahci",
    "sd_mod",
    "dm-crypt",
    "crc32c_generic",
    "crc32_generic",
    "xts",
    "ecb",
    "algif_skcipher",
    "rdma_rxe",
    "dummy",
)
"""Modules; what they need is loaded before them, what is built in is passed over."""


def boot(folder: Path) -> dict[str, bytes]:
    """What ``check`` and ``snapshot`` printed, by ``<scenario>.check`` and ``<scenario>.snapshot``. Raises guest.Unavailable or
    guest.Failed."""
    if os.uname().machine != "x86_64":
        raise guest.Unavailable(f"the guest is x86-64, this machine {os.uname().machine}")
    guest.install()
    rdma, mkfs = guest.which("rdma"), guest.which("mkfs.ext4")
    if rdma is None or mkfs is None:
        raise guest.Unavailable("rdma (iproute2) or mkfs.ext4 (e2fsprogs) is not installed")
    made_of = _parts(folder)
    initramfs = folder / "initramfs"
    images = {"out": folder / "out.tar", "data": folder / "data.img", "disk0": folder / "0.img", "disk1": folder / "1.img"}
    for image, mib in zip(images.values(), (64, 16 << 10, 128, 128), strict=True):
        with image.open("wb") as file:
            file.truncate(mib << 20)
    guest._run("mkfs.ext4", "-q", "-F", str(images["data"]))
    order = (made_of / "modules").read_text().split()
    programs = [made_of / "cryptsetup", made_of / "lvm", Path(rdma), Path(mkfs)]
    init = guest.HERE / "scenarios-init"
    initramfs.write_bytes(guest.archive(init, programs, [made_of / name for name in order], made_of / "libraries"))
    guest.run(_machine(made_of / "vmlinuz", initramfs, images), folder / "console", DEADLINE_S)
    for path in (initramfs, images["data"], images["disk0"], images["disk1"]):
        path.unlink()
    return _told(images["out"])


def _told(out: Path) -> dict[str, bytes]:
    with tarfile.open(out) as archive:
        files = {member.name.removeprefix("./"): archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def _machine(kernel: Path, initramfs: Path, images: dict[str, Path]) -> tuple[str, ...]:
    """Two nodes of 2 CPUs and 3 GiB; below a root port of each one NVMe or USB controller. It passes for bare metal and its SATA disks
    for a maker's, since what a hypervisor makes up is not judged. TCG's time stamp counter is steady, though the kernel cannot tell."""
    nodes = ("node,nodeid=0,cpus=0-1,memdev=m0", "node,nodeid=1,cpus=2-3,memdev=m1")
    ports = ((0, "near0", 1), (1, "near1", 2), (1, "slow", 3))
    return (
        *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-hypervisor,-la57"),
        *("-smbios", "type=0,vendor=AMI,version=2.1", "-smbios", "type=1,manufacturer=Supermicro,product=SYS-421GE"),
        *("-smp", "4,sockets=2,cores=2,threads=1", "-m", "6G"),
        *("-object", "memory-backend-ram,id=m0,size=3G", "-object", "memory-backend-ram,id=m1,size=3G"),
        *(word for node in nodes for word in ("-numa", node)),
        *("-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=1,dst=0,val=21"),
        *("-device", "pxb-pcie,id=pxb0,bus=pcie.0,bus_nr=32,numa_node=0"),
        *("-device", "pxb-pcie,id=pxb1,bus=pcie.0,bus_nr=64,numa_node=1"),
        *(
            word
            for node, name, slot in ports
            for word in ("-device", f"pcie-root-port,id={name},bus=pxb{node},chassis={slot},slot={slot},x-speed=16,x-width=16")
        ),
        *("-device", "nec-usb-xhci,bus=near0", "-device", "nec-usb-xhci,bus=near1"),
        *(word for name, image in images.items() for word in ("-drive", f"file={image},format=raw,if=none,id={name}")),
        *("-device", "nvme,drive=data,serial=data,bus=slow", "-device", "nvme,drive=out,serial=out,bus=pcie.0"),
        *(
            word
            for number in (0, 1)
            for word in ("-device", f"ide-hd,drive=disk{number},bus=ide.{number},model=ST4000NM0035-1V4107,rotation_rate=7200")
        ),
        *("-kernel", str(kernel), "-initrd", str(initramfs)),
        *(
            "-append",
            f"console=ttyS0 quiet nokaslr nosoftlockup rcupdate.rcu_cpu_stall_suppress=1 panic=-1 rdinit=/init tsc=reliable {guest.EMULATED}",
        ),
        *("-nic", "none", "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"),
    )


def _parts(folder: Path) -> Path:
    """Kernel, modules, cryptsetup, lvm and the libraries that come with these; kept for the next time."""
    if guest.which("apt-get") is None or guest.which("dpkg-deb") is None:
        raise guest.Unavailable("no Debian kernel: this needs apt-get and dpkg-deb")
    kernel = guest.kernel_package("linux-image-amd64")
    cache = guest.cached(f"scenarios-{kernel}")
    if cache.is_dir():
        return cache
    planned = guest._run("apt-get", "install", "-s", "--no-install-recommends", "--reinstall", *TOOLS)
    tools = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    unpacked, taken = guest.unpack(folder, kernel, *tools), folder / "parts"
    (taken / "libraries").mkdir(parents=True)
    shutil.copy(next((unpacked / "boot").glob("vmlinuz-*")), taken / "vmlinuz")
    for tool in ("cryptsetup", "lvm"):
        shutil.copy(next(unpacked.glob(f"**/sbin/{tool}")), taken / tool)
    for library in unpacked.glob("**/*.so.*"):
        if library.is_file():
            shutil.copy(library, taken / "libraries" / library.name)
    order: list[str] = []
    for module in WANTED:
        _take(unpacked, module, taken, order)
    (taken / "modules").write_text("\n".join(order))
    return guest.keep(taken, unpacked, cache)


def _take(unpacked: Path, module: str, taken: Path, order: list[str]) -> None:
    """Copy the module and what it needs (``depends=`` in its .modinfo, as modinfo shows it), and note the order of loading."""
    path = guest.take_module(unpacked, module, taken) or guest.take_module(unpacked, module.replace("_", "-"), taken)
    if path is None or path.name in order:
        return
    needs = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
    for name in needs[1].decode().split(",") if needs and needs[1] else ():
        _take(unpacked, name, taken, order)
    order.append(path.name)


if __name__ == "__main__":
    print({name: len(told) for name, told in boot(Path(sys.argv[1])).items()})
