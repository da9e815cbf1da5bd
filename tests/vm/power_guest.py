"""Power cuts: a machine with /etc and /var/lib on a disk, whose QEMU is killed while the tool changes it.

One machine boots and is stopped just before it looks at its disk. Each later one begins at that point (in a second, where a boot takes
ten) with the disk as the cut left it, and mounts it anew, journal replay included. A cut loses what the guest had not written: QEMU
hands what it was given to this host's kernel, which lives on.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import IO, Any

import guest
import scenarios_guest

MODULES = ("virtio_pci", "virtio_blk")
BOOT_S, STEP_S = 900.0, 600.0
STATE_MIB = 512
PYTHON = Path(sys.executable).resolve()
SEE = f"{PYTHON} -I -S /sbin/fingerprint.py"
OWN = "/etc/sysctl.d/99-torchtune-sys.conf"
PREPARE = (
    f"mkdir -p /disk/etc/sysctl.d; printf '# Made by torchtune-sys; torchtune-sys undo takes it back.\\n\\n# by hand, no newline"
    f" at its end' >/disk{OWN}; chown 7:8 /disk{OWN}; chmod 640 /disk{OWN}; {SEE}"
)
APPLY = f"{PYTHON} -m torchtune_sys apply --yes --unsafe --color never"
UNDO = f"{PYTHON} -m torchtune_sys undo --yes --color never"


class Bench:
    """The machine at its READY, and everything that is needed to go on from there."""

    def __init__(self, folder: Path) -> None:
        """Raises guest.Unavailable, guest.Failed."""
        if os.uname().machine != "x86_64":
            raise guest.Unavailable(f"the guest is x86-64, this machine {os.uname().machine}")
        guest.install()
        self.folder = folder
        made_of = parts(folder)
        modules = [made_of / name for name in (made_of / "modules").read_text().split() if name != "virtio_blk.ko"]
        programs = [made_of / "virtio_blk.ko", guest.HERE / "fingerprint.py"]
        self.kernel, self.initramfs, self.state = made_of / "vmlinuz", folder / "initramfs", folder / "state"
        self.initramfs.write_bytes(guest.archive(guest.HERE / "power-init", programs, modules))
        blank = self.disk("blank")
        machine = Running(self, blank, BOOT_S)
        machine.wait("READY")
        machine.monitor.save(self.state)
        machine.end()
        self.initramfs.unlink()

    def disk(self, name: str, like: Path | None = None, options: tuple[str, ...] = ()) -> Path:
        """A new disk, or a copy of another."""
        place = self.folder / f"{name}.img"
        if like is not None:
            guest._run("cp", "--sparse=always", str(like), str(place))
            return place
        with place.open("wb") as file:
            file.truncate(64 << 20)
        guest._run("mkfs.ext4", "-q", "-F", *options, str(place))
        return place

    def do(self, disk: Path, command: str) -> str:
        """Start, do the command to its end, power off; what was said. Raises guest.Failed."""
        machine = Running(self, disk, STEP_S, resume=True)
        machine.tell(f"start {uuid.uuid4()} rw; {command}")
        machine.wait("GUEST-DONE")
        machine.end()
        return machine.said()

    def flushes_of(self, disk: Path, command: str) -> int:
        """How often the command flushes the disk."""
        machine = self._going(disk, command)
        first = machine.monitor.flushes()
        machine.wait("OVER")
        count = machine.monitor.flushes() - first
        machine.end()
        return count

    def cut(self, disk: Path, command: str, flushes: int, after_s: float) -> bool:
        """Kill the machine ``after_s`` after the command has flushed the disk so often; whether the command had ended before."""
        machine = self._going(disk, command)
        first = machine.monitor.flushes()
        while machine.monitor.flushes() - first < flushes and "OVER" not in machine.said():
            time.sleep(0.001)
        time.sleep(after_s)
        ended = "OVER" in machine.said()
        machine.end()
        return ended

    def _going(self, disk: Path, command: str) -> Running:
        """A machine that is about to do the command. The words are cut in two, since the line shows what is typed."""
        machine = Running(self, disk, STEP_S, resume=True)
        machine.tell(f"start {uuid.uuid4()} rw; echo G''O; {command}; echo OV''ER; sleep 1000")
        machine.wait("GO")
        return machine


class Running:
    """One QEMU."""

    def __init__(self, bench: Bench, disk: Path, deadline_s: float, *, resume: bool = False) -> None:
        self._console = bench.folder / "console"
        self._deadline = time.monotonic() + deadline_s
        control = bench.folder / "qmp"
        control.unlink(missing_ok=True)
        log: IO[bytes]
        with self._console.open("wb") as log:
            argv = (
                *(
                    "timeout",
                    "-k",
                    "1",
                    f"{deadline_s:.0f}",
                    "qemu-system-x86_64",
                    "-machine",
                    "q35",
                    "-accel",
                    "tcg,thread=multi",
                ),
                *("-cpu", "max,-hypervisor,-la57", "-smp", "1", "-m", f"{STATE_MIB}M"),
                *("-drive", f"file={disk},format=raw,if=none,id=disk,cache=writeback", "-device", "virtio-blk-pci,drive=disk"),
                *("-kernel", str(bench.kernel), "-append", f"console=ttyS0 quiet panic=-1 rdinit=/init {guest.EMULATED}"),
                *(("-incoming", f"exec:cat {bench.state}") if resume else ("-initrd", str(bench.initramfs))),
                *(
                    "-qmp",
                    f"unix:{control},server=on,wait=off",
                    "-serial",
                    "stdio",
                    "-nic",
                    "none",
                    "-display",
                    "none",
                    "-no-reboot",
                ),
                *("-monitor", "none"),
            )
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        self.monitor = Monitor(control)

    def said(self) -> str:
        return self._console.read_bytes().decode("utf-8", "replace").replace("\r", "")

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None and len(command) < 4000, len(command)
        self._process.stdin.write(b"\n" + command.encode() + b"\n")
        self._process.stdin.flush()

    def wait(self, word: str) -> None:
        while not re.search(rf"^{word}$", self.said(), re.MULTILINE):
            if self._process.poll() is not None or time.monotonic() > self._deadline:
                self.end()
                raise guest.Failed(f"no {word}:\n{self.said()[-3000:]}")
            time.sleep(0.01)

    def end(self) -> None:
        """SIGKILL: QEMU has no time for anything."""
        self.monitor.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Monitor:
    """QEMU's control socket (QMP)."""

    def __init__(self, path: Path) -> None:
        deadline = time.monotonic() + 90
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        self._ask("qmp_capabilities")

    def _ask(self, command: str, **arguments: str) -> Any:
        """None once the machine is off."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            while line := self._lines.readline():
                answer = json.loads(line)
                if "error" in answer:
                    raise guest.Failed(f"{command}: {answer['error']}")
                if "return" in answer:
                    return answer["return"]
        return None

    def flushes(self) -> int:
        told = self._ask("query-blockstats")
        return 0 if told is None else int(told[0]["stats"]["flush_operations"])

    def save(self, state: Path) -> None:
        """Write down what the machine is, its disk excepted; it ends there."""
        self._ask("migrate", uri=f"exec:cat >{state}")
        while (told := self._ask("query-migrate")["status"]) != "completed":
            if told == "failed":
                raise guest.Failed("the machine's state could not be written")
            time.sleep(0.05)

    def kill(self) -> None:
        process = int.from_bytes(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, 9)
        self._lines.close()
        self._socket.close()


def parts(folder: Path) -> Path:
    """Debian's kernel for virtual machines and the modules of virtio's disk, kept for the next time."""
    if guest.which("apt-get") is None or guest.which("dpkg-deb") is None:
        raise guest.Unavailable("no Debian kernel: this needs apt-get and dpkg-deb")
    kernel = guest.kernel_package("linux-image-cloud-amd64")
    cache = guest.cached(f"power-{kernel}")
    if cache.is_dir():
        return cache
    unpacked, taken = guest.unpack(folder, kernel), folder / "parts"
    taken.mkdir()
    shutil.copy(next((unpacked / "boot").glob("vmlinuz-*")), taken / "vmlinuz")
    order: list[str] = []
    for module in MODULES:
        scenarios_guest._take(unpacked, module, taken, order)
    (taken / "modules").write_text("\n".join(order))
    return guest.keep(taken, unpacked, cache)


def seen(said: str) -> dict[str, str]:
    """What fingerprint.py printed: path → what is there."""
    rows = [line[5:] for line in said.splitlines() if line.startswith("SEEN ")]
    if not rows:
        raise guest.Failed(f"nothing was seen:\n{said[-3000:]}")
    found: dict[str, str] = dict(json.loads(row) for row in rows)
    return found


def points(count: int, flushes: int, seed: int) -> list[tuple[int, float]]:
    """(flushes, seconds after the last of them), at random over the whole command."""
    chance = random.Random(seed)
    return [(chance.randint(0, flushes), chance.uniform(0, 0.03)) for _ in range(count)]
