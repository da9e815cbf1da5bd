"""A whole Debian on a disk that keeps what is changed: started by GRUB and systemd, or by a script alone as process 1.

Everything that reads what ``apply`` writes is real: systemd-sysctl, systemd-tmpfiles, systemd-udevd, pam_limits, modprobe, systemd,
update-grub and GRUB. The disk is made once and kept; every machine gets a layer of its own over it.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import guest

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "udev",
    "procps",
    "kmod",
    "libpam-modules",
    "login",
    "systemd-timesyncd",
    "grub2-common",
    "grub-pc-bin",
    "util-linux",
)
"""Of Debian, in the guest; beside them the interpreter that runs the tests."""
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "/usr/lib/grub/x86_64*")
MASKED = ("getty@tty1", "serial-getty@ttyS0", "systemd-random-seed", "e2scrub_reap", "grub-common", "systemd-update-utmp")
TIMERS = ("apt-daily", "apt-daily-upgrade", "dpkg-db-backup", "e2scrub_all", "fstrim", "systemd-tmpfiles-clean")
SERVICE = """[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/remedy-init
"""
GRUB = f"""GRUB_TIMEOUT=0
GRUB_DISTRIBUTOR=Debian
GRUB_CMDLINE_LINUX="console=ttyS0 quiet panic=-1 {guest.EMULATED}"
GRUB_TERMINAL=console
GRUB_DISABLE_LINUX_UUID=true
"""
SYSTEM_MIB, FIRST_SECTOR = 1500, 2048
MAKE = """mkdir -p /boot/grub && grub-install --target=i386-pc /dev/nvme0n1 && update-grub && echo MADE
"""


# --- the disk ---------------------------------------------------------------------------------------------------------


def system(folder: Path) -> Path:
    """The disk image with Debian (kept for the next time). Raises guest.Unavailable."""
    if os.uname().machine != "x86_64":
        raise guest.Unavailable(f"the guest is x86-64, this machine {os.uname().machine}")
    guest.install()
    for program in ("mmdebstrap", "qemu-img", "sfdisk", "depmod", "dpkg-deb"):
        if guest.which(program) is None:
            raise guest.Unavailable(f"{program} is not installed")
    kernel = guest.kernel_package("linux-image-cloud-amd64")
    made_of = (*PACKAGES, *MASKED, *TIMERS, SERVICE, GRUB, MAKE, (guest.HERE / "remedy-init").read_text())
    cache = guest.cached(f"remedy-{kernel}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:8]}")
    if not cache.is_dir():
        _make_system(folder, kernel, cache)
    return cache / "system.img"


def _make_system(folder: Path, kernel: str, cache: Path) -> None:
    root, taken = folder / "root", folder / "taken"
    taken.mkdir()
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if release.get("ID") != "debian":
        raise guest.Unavailable("the guest is made by a Debian's apt")
    unwanted = [f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT]
    include = f"--include={','.join(PACKAGES)}"
    argv = ("mmdebstrap", "-q", "--variant=minbase", include, *unwanted, release["VERSION_CODENAME"], str(root))
    guest._run(*argv, timeout_s=400)
    unpacked = guest.unpack(folder, kernel)
    shutil.move(unpacked / "lib/modules", root / "usr/lib/modules")  # unpacked over it, /lib would cease to be a link
    shutil.copytree(unpacked / "boot", root / "boot", dirs_exist_ok=True)
    guest._run("depmod", "-b", str(root), next((root / "usr/lib/modules").iterdir()).name)
    _set_up(root)
    shutil.copy(next((root / "boot").glob("vmlinuz-*")), taken / "vmlinuz")
    image = taken / "system.img"
    offset = f"offset={FIRST_SECTOR * 512}"
    guest._run("mkfs.ext4", "-q", "-d", str(root), "-E", f"{offset},root_owner=0:0", str(image), f"{SYSTEM_MIB}M", timeout_s=120)
    subprocess.run(
        ("sfdisk", "-q", str(image)),
        input=f"start={FIRST_SECTOR},type=83,bootable\n",
        text=True,
        check=True,
        timeout=60,
        capture_output=True,
    )
    shutil.rmtree(root)
    made = Machine(folder, image, tool(folder), init=True, layer=False).do(MAKE)
    if b"MADE" not in made["log"]:
        raise guest.Failed(made["log"].decode("utf-8", "replace"))
    guest.keep(taken, unpacked, cache)


def _set_up(root: Path) -> None:
    shutil.copy(guest.HERE / "remedy-init", root / "remedy-init")
    (root / "remedy-init").chmod(0o755)
    (root / "etc/hostname").write_text("trainer-01\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 trainer-01\n")
    (root / "etc/fstab").write_text("/dev/nvme0n1p1 / ext4 rw 0 1\nLABEL=swap none swap sw,nofail 0 0\n")
    (root / "etc/default").mkdir(exist_ok=True)
    (root / "etc/default/grub").write_text(GRUB)
    units = root / "etc/systemd/system"
    (units / "remedy.service").write_text(SERVICE)
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "remedy.service").symlink_to("/etc/systemd/system/remedy.service")
    for unit in (*(f"{name}.service" for name in MASKED), *(f"{name}.timer" for name in TIMERS)):
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")


def tool(folder: Path) -> Path:
    """A disk image with this interpreter and our packages, to be mounted at /opt: ``/opt/tool``
    starts the tool, ``/opt/python`` the interpreter, with libraries of their own whatever the guest has."""
    tree = folder / f"tool-{len(list(folder.glob('tool-*')))}"
    files: dict[str, tuple[Path, int]] = {}
    guest._python(files, None)
    (tree / "lib").mkdir(parents=True)
    for place, (path, _) in files.items():
        ours = place.removeprefix("/opt/packages/")
        inside = ours if ours != place else place.lstrip("/")
        if ".so" in path.name and ours == place and not place.startswith(f"{Path(os.__file__).parent}/"):
            inside = f"lib/{path.name}"
        target = tree / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    _starters(tree)
    image = tree.with_suffix(".img")
    guest._run("mkfs.ext4", "-q", "-O", "^has_journal", "-d", str(tree), str(image), "400M")
    shutil.rmtree(tree)
    return image


def _starters(tree: Path) -> None:
    compiled = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(tree / "torchtune_sys"))
    subprocess.run((sys.executable, *compiled), check=True, timeout=120)
    executable, library = Path(sys.executable).resolve(), Path(os.__file__).parent
    loader = next(path.name for path in (tree / "lib").glob("ld-linux*"))
    start = (
        f"#!/bin/sh\nexport PYTHONHOME=/opt{library.parent.parent} PYTHONPATH=/opt PYTHONDONTWRITEBYTECODE=1\n"
        f'exec /opt/lib/{loader} --library-path /opt/lib:/opt{library.parent.parent}/lib /opt{executable} %s"$@"\n'
    )
    for name, words in (("python", ""), ("tool", "-m torchtune_sys ")):
        (tree / name).write_text(start % words)
        (tree / name).chmod(0o755)


# --- the machine ------------------------------------------------------------------------------------------------------


class Machine:
    """One machine with its own layer over the system's disk, which lasts from boot to boot."""

    def __init__(self, folder: Path, image: Path, tool: Path, *, init: bool = False, layer: bool = True) -> None:
        self.folder, self.tool, self.init = folder, tool, init
        self.kernel = image.with_name("vmlinuz")
        self.boots_s: list[float] = []
        self.disk, self.format = image, "raw"
        if layer:
            self.disk, self.format = folder / "system.qcow2", "qcow2"
            guest._run("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(image), "-F", "raw", str(self.disk))
        for name, mib in (("data", 512), ("swap", 64), ("spin", 64)):
            with (folder / f"{name}.img").open("wb") as file:
                file.truncate(mib << 20)
        guest._run("mkfs.ext4", "-q", "-F", str(folder / "data.img"))
        guest._run("mkfs.ext4", "-q", "-F", str(folder / "spin.img"))
        guest._run("mkswap", "-q", "-L", "swap", str(folder / "swap.img"))

    def do(
        self, script: str, files: dict[str, bytes] | None = None, deadline_s: float = 900.0, append: str = ""
    ) -> dict[str, bytes]:
        """Boot, run the script, power off; what it left in its working directory, by name. Raises guest.Failed."""
        self._give({"run": script.encode(), **(files or {})})
        started = time.monotonic()
        guest.run(self._argv(append), self.folder / "console", deadline_s)
        self.boots_s.append(time.monotonic() - started)
        return self._taken()

    def _give(self, files: dict[str, bytes]) -> None:
        with tarfile.open(self.folder / "todo.img", "w") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755
                archive.addfile(member, io.BytesIO(content))
        with (self.folder / "out.img").open("wb") as file:
            file.truncate(64 << 20)

    def _taken(self) -> dict[str, bytes]:
        with tarfile.open(self.folder / "out.img") as archive:
            files = {member.name.removeprefix("./"): archive.extractfile(member) for member in archive if member.isfile()}
            return {name: file.read() for name, file in files.items() if file is not None}

    def _argv(self, append: str) -> tuple[str, ...]:
        """Two NUMA nodes, five NVMe disks, one that says it spins, a USB controller; it passes for bare metal, since virtual machines are not judged alike."""
        images = {name: self.folder / f"{name}.img" for name in ("data", "swap", "todo", "out")}
        boot = (
            "-kernel",
            str(self.kernel),
            "-append",
            f"root=/dev/nvme0n1p1 ro console=ttyS0 quiet panic=-1 init=/remedy-init {guest.EMULATED} {append}",
        )
        return (
            *("qemu-system-x86_64", "-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max,-hypervisor,-la57"),
            *("-smbios", "type=0,vendor=AMI,version=2.1", "-smbios", "type=1,manufacturer=Supermicro,product=SYS-421GE"),
            *("-smp", "2,sockets=2,cores=1,threads=1", "-m", "768M"),
            *("-object", "memory-backend-ram,id=m0,size=384M", "-object", "memory-backend-ram,id=m1,size=384M"),
            *("-numa", "node,nodeid=0,cpus=0,memdev=m0", "-numa", "node,nodeid=1,cpus=1,memdev=m1"),
            *("-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=1,dst=0,val=21"),
            *("-drive", f"file={self.disk},format={self.format},if=none,id=system,cache=writeback"),
            *("-device", "nvme,drive=system,serial=system,bootindex=1"),
            *(
                "-drive",
                f"file={self.tool},format=raw,if=none,id=tool,readonly=on,file.locking=off",
                "-device",
                "nvme,drive=tool,serial=tool",
            ),
            *(
                word
                for name, image in images.items()
                for word in (
                    "-drive",
                    f"file={image},format=raw,if=none,id={name}",
                    "-device",
                    f"nvme,drive={name},serial={name}",
                )
            ),
            *("-drive", f"file={self.folder / 'spin.img'},format=raw,if=none,id=spin", "-device", "nec-usb-xhci"),
            *("-device", "ide-hd,drive=spin,bus=ide.0,model=ST4000NM0035-1V4107,rotation_rate=7200"),
            *(boot if self.init else ()),
            *("-nic", "none", "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"),
        )


if __name__ == "__main__":
    place = Path(sys.argv[1])
    started = time.monotonic()
    disk = system(place)
    print(disk, f"{time.monotonic() - started:.1f} s")
    machine = Machine(place, disk, tool(place), init="init" in sys.argv)
    print(machine.do(sys.stdin.read())["log"].decode(), machine.boots_s)
