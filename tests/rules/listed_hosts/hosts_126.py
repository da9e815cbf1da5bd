"""Builders of the hosts 126 to 140 of hosts.csv, odd but healthy."""

from __future__ import annotations

from hosts_082 import _SUPPLIES, _debian_hosts, _files, _laptop, _limited, _mounted, _named_in_pod, _temporary, wsl2
from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_variables

from machines import Recording, environment, interpreter, ordinary, over, system, text
from platforms_arm import gb200_tray
from platforms_troubled import logged

with_variables(
    126,
    two_dgx,
    NCCL_IB_TIMEOUT="22",
    NCCL_IB_RETRY_CNT="7",
    NCCL_IB_QPS_PER_CONNECTION="4",
    NCCL_DEBUG="WARN",
    TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="1800",
    TORCH_NCCL_DUMP_ON_TIMEOUT="1",
    TORCH_NCCL_TRACE_BUFFER_SIZE="2000",
)
with_variables(
    127,
    mi300x,
    HSA_NO_SCRATCH_RECLAIM="1",
    NCCL_MIN_NCHANNELS="112",
    HIP_FORCE_DEV_KERNARG="1",
    TORCH_BLAS_PREFER_HIPBLASLT="1",
    GPU_MAX_HW_QUEUES="2",
)


@made(128, desktop)
def an_ordinary_start() -> Recording:
    return logged(
        desktop(),
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "perf: interrupt took too long (2517 > 2500), lowering kernel.perf_event_max_sample_rate to 79250",
        "hrtimer: interrupt took 3211 ns",
        "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00.TXHC.RHUB.SS01], AE_NOT_FOUND (20240827/dswload2-162)",
        "usb 1-4: reset full-speed USB device number 3 using xhci_hcd",
        "EDAC MC: Ver: 3.0.0",
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
        "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
        "Bluetooth: hci0: Failed to load Intel firmware file intel/ibt-0041-0041.sfi (-2)",
        "systemd-journald[412]: Received client request to flush runtime journal.",
    )


HOSTS[129] = (lambda: _laptop(1, "Not charging"), desktop)


@made(130, desktop)
def battery_of_a_mouse() -> Recording:
    mouse = {"type": "Battery", "scope": "Device", "status": "Discharging", "capacity": "35"}
    ups = {"type": "UPS", "online": "1", "status": "Full"}
    files = {f"{_SUPPLIES}/hidpp_battery_0/{name}": f"{value}\n" for name, value in mouse.items()}
    files |= {f"{_SUPPLIES}/hiddev0/{name}": f"{value}\n" for name, value in ups.items()}
    return over(desktop(), files=files, dirs={_SUPPLIES: ["hidpp_battery_0", "hiddev0"]})


HOSTS[131] = (lambda: _debian_hosts(dgx), dgx)


def _pod() -> Recording:
    return ordinary("k8s-h100")


@made(132, _pod)
def openshift() -> Recording:
    home = "/opt/app-root/src"
    line = "1000650000:x:1000650000:0:user:/opt/app-root/src:/bin/bash"
    who = {"uid": 1000650000, "gid": 0, "groups": [0, 1000650000], "user": "1000650000", "home": home}
    host = _mounted(_named_in_pod(), home, "- ceph 10.0.0.9:6789:/volumes/csi/home rw,name=csi")
    return over(environment(host, HOME=home), files={"/etc/passwd": line}, answers={"uid": who})


@made(133, wsl2)
def windows_disk_unused() -> Recording:
    return _mounted(
        system(wsl2(), kernel="6.6.87.2-microsoft-standard-WSL2"), "/mnt/c", "- 9p C:\\134 rw,aname=drvfs;path=C:\\;uid=1000"
    )


@made(134, gb200_tray)
def arguments_for_grace() -> Recording:
    host = gb200_tray()
    line = text(host, "/proc/cmdline")[0] + " init_on_alloc=0 iommu.passthrough=1 numa_balancing=disable pci=realloc=off"
    return over(host, files={"/proc/cmdline": f"{line}\n"})


@made(135)
def stateless_node() -> Recording:
    host = dgx()
    mounts = [
        line.replace("xfs /dev/nvme0n1p3 rw", "tmpfs rootfs rw,size=263000000k") for line in text(host, "/proc/self/mountinfo")
    ]
    host = over(host, files={"/proc/self/mountinfo": mounts, "/etc/warewulf/warewulf.conf": ""})
    host = _mounted(host, "/scratch", "- lustre 10.1.1.1@o2ib:/scratch rw,checksum,flock,user_xattr,lruresize,lazystatfs")
    nfs = "61 30 0:61 / /home rw,relatime shared:51 - nfs4 nfs01:/home rw,vers=4.2,rsize=1048576,wsize=1048576,hard,nconnect=16,proto=tcp"
    return over(
        host, files={"/proc/self/mountinfo": [*text(host, "/proc/self/mountinfo"), nfs]}, intent={"checkpoints": ["/scratch"]}
    )


with_variables(136, CUDA_MPS_PIPE_DIRECTORY="/tmp/mps_alice")


@made(137, desktop)
def managed_python_of_uv() -> Recording:
    host = desktop()
    venv, managed = host["env"]["VIRTUAL_ENV"], "/home/mia/.local/share/uv/python/cpython-3.12.9-linux-x86_64-gnu"
    home = [
        f"home = {managed}/bin",
        "implementation = CPython",
        "uv = 0.9.5",
        "version_info = 3.12.9",
        "include-system-site-packages = false",
    ]
    headers = {f"{managed}/include/python3.12/Python.h": "", f"{venv}/pyvenv.cfg": home}
    host = over(
        environment(host, UV_CACHE_DIR="/home/mia/.cache/uv"),
        files=headers,
        links={f"{venv}/bin/python": f"{managed}/bin/python3.12"},
    )
    site = f"{venv}/lib/python3.12/site-packages"
    return interpreter(host, base_prefix=managed, version="3.12.9", path=[f"{managed}/lib/python3.12", site])


HOSTS[138] = (
    lambda: over(
        _limited(dgx, core=[0, 0], fsize=[None, None], nofile=[1048576, 1048576]),
        files={"/proc/sys/kernel/core_pattern": "|/usr/lib/systemd/systemd-coredump %P %u %g %s %t %c %h\n"},
    ),
    dgx,
)
_files(
    139,
    net__ipv4__ip_local_port_range="10000\t65535",
    net__netfilter__nf_conntrack_max="1048576",
    net__netfilter__nf_conntrack_count="3200",
    vm__min_free_kbytes="4194304",
)


def slurm() -> Recording:
    return ordinary("slurm-a100")


_temporary(140, slurm, "/tmp/slurm-4711")
