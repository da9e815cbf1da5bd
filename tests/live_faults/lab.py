"""Makes a fault in namespaces of its own, runs ``check`` there and grades what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from library import build
from silent_fuse import SERVER

from live_faults.row import Fault

PRELUDE = r"""
set -eu
exec 3>&1 >&2
mount -t tmpfs tmpfs "$W"; chmod 755 "$W"; mkdir "$W/work"; chmod 1777 "$W/work"; cd "$W/work"
n=0
over() { local held; held=$(mktemp "$W/oXXXXXX"); cat > "$held"; chmod 644 "$held"; mount --bind "$held" "$1"; }   # standard input in place of a file
edit() { local what=$1; shift; sed "$@" "$what" | over "$what"; }
lay() { n=$((n+1)); mkdir -p "$W/u$n" "$W/w$n"; mount -t overlay overlay -o "lowerdir=$1,upperdir=$W/u$n,workdir=$W/w$n" "$1"; }   # what is written stays here
put() { mkdir -p "$(dirname "$1")"; printf '%s\n' "$2" > "$1"; }
disk() { n=$((n+1)); truncate -s "$2" "$W/d$n"; "mkfs.$1" -q ${4:-} "$W/d$n"; mkdir -p "$W/m"; mount -o "loop,${3:-defaults}" "$W/d$n" "$W/m"; chmod 777 "$W/m"; }
group() { for g in /sys/fs/cgroup/$1; do mkdir -p "$g/tt-lab-$$"; echo "$3" > "$g/tt-lab-$$/$2"; echo $$ > "$g/tt-lab-$$/cgroup.procs"; done; }
wire() { ip link add "$1" type veth peer name "p$1"; ip link set "$1" up; ip link set "p$1" up; ip addr add "$2" dev "$1"; }
as() { lay /root; chmod 755 /root; RUN="setpriv --reuid $1 --regid $1 --clear-groups"; }
RUN=
ip link set lo up; wire eth0 10.9.0.5/24; ip route add default via 10.9.0.1
hostname node5; printf '127.0.0.1 localhost\n10.9.0.5 node5\n' | over /etc/hosts
export HOME=$W/home; mkdir -p "$HOME"; chmod 777 "$HOME"
"""
GPUS = r"""
lay /usr/lib/x86_64-linux-gnu; cp "$STUB/libnvidia-ml.so.1" /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05; ln -s libnvidia-ml.so.580.95.05 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
cp "$STUB/libnvidia-ml.so.1" /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05; ln -s libcuda.so.580.95.05 /usr/lib/x86_64-linux-gnu/libcuda.so.1; ln -s libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so
edit /proc/cpuinfo 's/ hypervisor//'
mkdir "$W/cg"; mount --rbind /sys/fs/cgroup "$W/cg"; lay /sys; mount --rbind "$W/cg" /sys/fs/cgroup
mkdir "$W/shm"; mount --rbind /dev/shm "$W/shm"; lay /dev; mount --rbind "$W/shm" /dev/shm
mount -t tmpfs tmpfs /proc/driver
put /proc/driver/nvidia/version 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-AF03-25-6)  Tue Sep 23 09:55:41 UTC 2025'
put /proc/driver/nvidia/params 'EnableStreamMemOPs: 0'
put /sys/module/nvidia/version 580.95.05; put /sys/module/nvidia_uvm/refcnt 2; put /sys/module/nvidia/refcnt 4
for d in 0 1; do mknod -m 666 /dev/nvidia$d c 195 $d; done; mknod -m 666 /dev/nvidiactl c 195 255; mknod -m 666 /dev/nvidia-uvm c 511 0
port() { put "$1/uevent" "$2"; put "$1/class" "$3"; put "$1/vendor" "${4%:*}"; put "$1/device" "${4#*:}"; put "$1/numa_node" "${5:--1}"
  put "$1/current_link_speed" "32.0 GT/s PCIe"; put "$1/max_link_speed" "32.0 GT/s PCIe"; put "$1/current_link_width" 16; put "$1/max_link_width" 16
  ln -s "../../../devices/${1#/sys/devices/}" "/sys/bus/pci/devices/$(basename "$1")"; }
D0=/sys/devices/pci0000:17/0000:17:01.0 D1=/sys/devices/pci0000:17/0000:17:02.0 G0=/sys/devices/pci0000:17/0000:17:01.0/0000:19:00.0 G1=/sys/devices/pci0000:17/0000:17:02.0/0000:1a:00.0
for d in $D0 $D1; do port $d "DRIVER=pcieport
PCI_CLASS=60400
PCI_ID=8086:352A
PCI_SLOT_NAME=$(basename $d)" 0x060400 0x8086:0x352a; done
for d in $G0 $G1; do port $d "DRIVER=nvidia
PCI_CLASS=30200
PCI_ID=10DE:2330
PCI_SUBSYS_ID=10DE:16C1
PCI_SLOT_NAME=$(basename $d)" 0x030200 0x10de:0x2330; mkdir -p /sys/bus/pci/drivers/nvidia; ln -s ../../../../bus/pci/drivers/nvidia $d/driver; done
export NVIDIA_STUB_FILE=$W/stub; : > "$W/stub"
cuda_torch() { lay "$SITE"; sed -i "s/2\.13\.0+cpu/2.13.0+cu130/; s/^cuda.*/cuda: Optional[str] = '13.0'/" "$SITE/torch/version.py"; }
stub() { printf '%s\n' "$@" >> "$W/stub"; }
"""
END = r"""
set +e
$RUN "$@" >&3
status=$?
for server in $(jobs -p); do kill -9 "$server"; done
exit $status
"""
_OF_THE_SETUP = {
    "--workers": ("dataloader-workers-exceed-cpus",),
    "disk ": ("disk-full", "disk-space-low"),
    "shm; mount": ("dev-shm-small",),
}
"""What is true of two CPUs and small disks besides the fault, by the words that make it so."""
LIMIT_S = 150
PLAIN = Fault("nothing", "")


class NotHere(Exception):
    """This machine does not let the fault be made."""


@lru_cache(1)
def _stub() -> Path:
    folder = build(Path(tempfile.mkdtemp(prefix="tt-lab-")))
    (folder / "fuse.py").write_text(SERVER)
    return folder


@lru_cache(1)
def _site(python: str) -> str:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def looked(fault: Fault, program: Sequence[str], python: str) -> dict[str, Any]:
    """Return what ``check`` printed with the fault, ``status`` beside it; raises NotHere where the fault could not be made."""
    with tempfile.TemporaryDirectory(prefix="tt-lab-", dir="/run") as folder:
        os.chmod(folder, 0o755)
        plant = PRELUDE + (GPUS if fault.base == "gpu" else "") + fault.plant + (f"\nas {fault.user}" if fault.user else "") + END
        argv = [*program, "check", "--format", "json", "--timeout", "60", "--python", python]
        words = [word.replace("$W", folder) for word in shlex.split(fault.args)]
        env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "W": folder,
            "PY": python,
            "STUB": str(_stub()),
            "SITE": _site(python),
        }
        env["FUSE"] = f"{sys.executable} {_stub()}/fuse.py"
        line = ["unshare", "-m", "-n", "-u", "-i", "--propagation", "private", "bash", "-c", plant, "bash", *argv, *words]
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        for left in Path("/sys/fs/cgroup").glob("*/tt-lab-*"):
            with suppress(OSError):  # another one's, still in use
                left.rmdir()
    if done.returncode == 2 and "torchtune-sys: " in done.stderr:
        return {"results": [], "status": 2, "words": done.stderr}
    try:
        return {**json.loads(done.stdout), "status": done.returncode, "words": done.stderr}
    except ValueError:
        raise NotHere(f"{fault.name}: status {done.returncode}: {done.stderr.strip()[-300:]}") from None


def findings(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {result["rule"]: result for result in report["results"] if result["verdict"] == "fail"}


def unknowns(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {result["rule"]: result for result in report["results"] if result["verdict"] in ("unknown", "crashed")}


def lacking(fault: Fault, report: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """Return what must be said and is not."""
    new = {rule: found for rule, found in findings(report).items() if found != findings(plain).get(rule)}
    unsure = {rule: found for rule, found in unknowns(report).items() if found != unknowns(plain).get(rule)}
    told = json.dumps([*new.values(), *unsure.values()])

    def said(word: str) -> bool:
        kind, _, rest = word.rpartition(":")
        if kind == "says":
            return re.search(rest, told) is not None
        if kind == "refused":
            return report["status"] == 2 and re.search(rest, report["words"]) is not None
        return rest in (unsure if kind == "unknown" else new)

    lost = [words for words in fault.must.split() if not fault.mistaken and not any(map(said, words.split("|")))]
    heard = {found["severity"] for rule, found in new.items() if _says(fault, rule, found)}
    wrong = heard and fault.severity and not fault.mistaken and not heard & set(fault.severity.split("|"))
    return lost + [f"severity {fault.severity}, not {'|'.join(sorted(heard))}"] * bool(wrong)


def _says(fault: Fault, rule: str, found: dict[str, Any]) -> bool:
    words = [word.partition(":")[2] or word for word in re.split(r"[ |]", fault.must)]
    return any(word == rule or (word and re.search(word, json.dumps(found))) for word in words)


def besides(fault: Fault, report: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """Return findings above advice that the host without the fault does not have and that nobody expected, and rules that crashed."""
    expected = {*re.split(r"[ |]", fault.must), *fault.may.split(), *findings(plain)}
    expected |= {rule for word, rules in _OF_THE_SETUP.items() if word in fault.args + fault.plant for rule in rules}
    words = [word.partition(":")[2] for word in re.split(r"[ |]", fault.must) if word.startswith("says:")]
    loud = [
        rule
        for rule, found in findings(report).items()
        if found["severity"] != "advice"
        and rule not in expected
        and not any(re.search(word, json.dumps(found)) for word in words)
    ]
    return loud + [result["rule"] for result in report["results"] if result["verdict"] == "crashed"]


def grade(fault: Fault, report: dict[str, Any], plain: dict[str, Any]) -> tuple[str, str]:
    """Return right, missed, partly or too much, and what was lacking or said besides."""
    lost, more = lacking(fault, report, plain), besides(fault, report, plain)
    words = "; ".join([*(f"not said: {one}" for one in lost), *(f"besides: {one}" for one in more)])
    if lost:
        return ("partly" if len(lost) < len(fault.must.split()) else "missed"), words
    return ("too much" if more else "right"), words


def main(lists: Mapping[str, Sequence[Fault]], part: str, names: Sequence[str]) -> None:
    """Print a line for each fault of a list."""
    python = os.environ["TORCHTUNE_SYS_TEST_TORCH"]
    program = [sys.executable, "-I", "-m", "torchtune_sys"]
    plain = {base: looked(PLAIN._replace(base=base), program, python) for base in ("host", "gpu")}
    for fault in lists[part]:
        if names and fault.name not in names:
            continue
        try:
            report = looked(fault, program, python)
        except (NotHere, subprocess.TimeoutExpired) as why:
            print(f"{part}\t{fault.name}\tnot made\t{str(why)[:300]}", flush=True)
            continue
        noted = [f"mistaken: {fault.mistaken}"] * bool(fault.mistaken) + [f"left: {fault.left}"] * bool(fault.left)
        print("\t".join((part, fault.name, *grade(fault, report, plain[fault.base]), *noted)), flush=True)
        if os.environ.get("VERBOSE"):
            for rule, found in findings(report).items():
                item = found["evidence"][0] if found["evidence"] else {}
                print(f"    {found['severity'][0]} {rule}: {item.get('subject')}: {item.get('seen')}", flush=True)
            print("    unknown:", *(rule for rule in unknowns(report) if rule not in unknowns(plain[fault.base])), flush=True)
