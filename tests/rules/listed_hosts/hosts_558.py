"""
Builders of the hosts 558 to 591 of hosts.csv, as an operator meets them.

The sealed third was drawn before any recipe was tried, by ``random.Random("tenth list of hosts, 30 November 2026")``: first
``sample(range(24), 8)`` of the faults, then ``sample(range(10), 3)`` of the healthy ones, in the list's order.
"""

from __future__ import annotations

from typing import Any

from hosts_141 import _amd_gpus, slurm
from hosts_384 import rocky
from hosts_424 import gh200
from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_log

from machines import (
    Recording,
    arm,
    cpus,
    cut,
    environment,
    interpreter,
    memory,
    nodes,
    ordinary,
    over,
    status,
    system,
    text,
    torch,
    without_gpus,
    x86,
)
from platforms import epyc_nps4
from platforms_arm import dgx_spark
from platforms_contained import lxc
from platforms_more import kvm_guest, oci_h100
from platforms_owners import without_modules
from platforms_troubled import logged, of_gpu


def _with_bmc(place: int, **variables: str) -> Recording:
    """The board's management controller as an Ethernet adapter on USB: the same link-local address on each host of its kind."""
    host = two_dgx()
    own: Recording = {**host["answers"]["interfaces"][1], "name": "bmc_redfish0"}
    own["addresses"] = [{"family": "inet", "address": "169.254.3.1", "prefix_length": 24}]
    listed = list(host["answers"]["interfaces"])
    listed.insert(place, own)
    listed = [{**one, "index": number} for number, one in enumerate(listed, 1)]
    files = {f"/sys/class/net/bmc_redfish0/{name}": f"{value}\n" for name, value in {"mtu": 1500, "operstate": "up"}.items()}
    links = {
        "/sys/class/net/bmc_redfish0": "../../devices/pci0000:00/0000:00:14.0/usb1/1-14/1-14.1/1-14.1:2.0/net/bmc_redfish0",
        "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-14/1-14.1/1-14.1:2.0/net/bmc_redfish0/device/driver": "../../../../../../../bus/usb/drivers/rndis_host",
    }
    host = over(host, answers={"interfaces": listed}, files=files, links=links)
    return environment(host, **variables) if variables else host


HOSTS[558] = (lambda: _with_bmc(1), lambda: _with_bmc(1, NCCL_SOCKET_IFNAME="eno3", GLOO_SOCKET_IFNAME="eno3"))
HOSTS[587] = (lambda: _with_bmc(13, NCCL_SOCKET_IFNAME="eno3", GLOO_SOCKET_IFNAME="eno3"), two_dgx)


def _on_apple(machine: str, info: list[str]) -> Recording:
    """A container of Docker Desktop on a Mac with an M3, CPU wheel."""
    host = without_gpus(ordinary("docker-workstation"))
    host = system(host, name="3f1c9d7a2b60", kernel="6.10.14-linuxkit", machine=machine)
    host = nodes(cpus(cut(host, "/sys/class/dmi"), packages=["0-7"], info=[info]), {0: ("0-7", 16_000_000)})
    return interpreter(torch(host, "2.11.0+cpu", arch=machine), machine=machine)


_ROSETTA = "fpu tsc cx8 cmov mmx fxsr sse sse2 pni pclmulqdq ssse3 cx16 sse4_1 sse4_2 movbe popcnt aes hypervisor lahf_lm abm"
HOSTS[559] = (
    lambda: _on_apple("x86_64", x86("VirtualApple @ 2.50GHz", "VirtualApple", _ROSETTA)),
    lambda: _on_apple("aarch64", arm("0x000", implementer="0x61")),
)
HOSTS[585] = (
    lambda: _on_apple("aarch64", arm("0x000", implementer="0x61")),
    lambda: without_gpus(torch(ordinary("docker-workstation"), "2.11.0+cpu")),
)
with_log(560, two_dgx, *["TCP: out of memory -- consider tuning tcp_mem"] * 40)
_SPLIT = "x86/split lock detection: #AC: {}/{} took a split_lock trap at address: 0x7f3a12c4d0e{:x}"
with_log(561, dgx, *[_SPLIT.format("python3", 4711, number % 16) for number in range(200)])
with_log(
    562,
    dgx,
    *[
        "audit: audit_backlog=8193 > audit_backlog_limit=8192",
        "audit: audit_lost=812345 audit_rate_limit=0 audit_backlog_limit=8192",
        "audit: backlog limit exceeded",
    ]
    * 60,
)
with_log(
    563,
    dgx,
    "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=1,cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/user.slice/user-1000.slice/session-3.scope,task=python3,pid=4711,uid=1000",
    "Out of memory: Killed process 4711 (python3) total-vm:912345678kB, anon-rss:890123456kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1812345kB oom_score_adj:0",
)
with_log(
    564,
    kvm_guest,
    "traps: python3[4711] trap invalid opcode ip:7f2b1c0d4e10 sp:7ffd8a1b2c30 error:0 in libtorch_cpu.so[7f2b19000000+18a00000]",
)
HOSTS[565] = (
    lambda: over(two_dgx(), files={"/proc/sys/net/ipv4/tcp_retries2": "2\n"}),
    lambda: over(two_dgx(), files={"/proc/sys/net/ipv4/tcp_retries2": "15\n"}),
)
with_log(
    566,
    gh200,
    *[
        "arm-smmu-v3 arm-smmu-v3.8.auto: event: F_TRANSLATION client: 0009:01:00.0 sid: 0x100 ssid: 0x0 iova: 0xffd2a000 ipa: 0x0",
        'arm-smmu-v3 arm-smmu-v3.8.auto: unpriv data write s1 "Input address caused fault"',
    ]
    * 20,
)
with_log(
    567,
    gh200,
    "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 0",
    "{1}[Hardware Error]: event severity: recoverable",
    "{1}[Hardware Error]:  Error 0, type: recoverable",
    "{1}[Hardware Error]:   section_type: ARM processor error",
    "{1}[Hardware Error]:   MIDR: 0x00000000410fd4f0",
    "{1}[Hardware Error]:   error_type: 0x02: cache error",
)
with_log(
    568, dgx, *["intel_powerclamp: Start idle injection to reduce power", "intel_powerclamp: Stop forced idle injection"] * 20
)
with_log(569, dgx, "EXT4-fs (nvme1n1): warning: mounting fs with errors, running e2fsck is recommended")
with_log(
    570,
    lambda: over(oci_h100(), intent={"nodes": 2}),
    *[
        "bnxt_en 0000:81:00.0 ens1f0np0: Error (timeout: 500015) msg {0x23 0x9c} len:0",
        "bnxt_en 0000:81:00.0 ens1f0np0: Firmware not responding, status: 0x2100",
    ]
    * 5,
)
with_log(
    571,
    two_dgx,
    "mlx5_core 0000:9a:00.0: wait_func:1137:(pid 4711): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource",
    "mlx5_core 0000:9a:00.0: wait_func:1137:(pid 4711): QUERY_VPORT_COUNTER(0x770) timeout. Will cause a leak of a command resource",
)
with_log(
    572,
    two_dgx,
    "ice 0000:31:00.0 eno3: tx_timeout: VSI_num: 14, Q 31, NTC: 0x1a, HW_HEAD: 0x1b, NTU: 0x1c, INT: 0x0",
    "ice 0000:31:00.0 eno3: tx_timeout recovery level 1, txqueue 31",
    "ice 0000:31:00.0 eno3: tx_timeout recovery unsuccessful, device is in unrecoverable state.",
)
with_log(
    573,
    mi300x,
    "amdgpu 0000:9d:00.0: amdgpu: RAS records:288 exceed threshold:256",
    "amdgpu 0000:9d:00.0: amdgpu: Please consult AMD Service Action Guide (SAG) for appropriate service procedures",
)


def _memory_modes(*modes: str) -> Recording:
    places = zip(_amd_gpus(mi300x()), modes, strict=True)
    return over(mi300x(), files={f"{place}/current_memory_partition": f"{mode}\n" for place, mode in places})


HOSTS[574] = (lambda: _memory_modes("NPS1", "NPS1", "NPS4", *("NPS1",) * 5), lambda: _memory_modes(*("NPS1",) * 8))


def _second_port(name: str) -> Recording:
    """A port without a cable beside the one that is used."""
    host = two_dgx()
    idle = {**host["answers"]["interfaces"][1], "name": "eno4", "index": 20, "addresses": [], "flags": 4099, "operstate": "down"}
    files = {"/sys/class/net/eno4/operstate": "down\n", "/sys/class/net/eno4/mtu": "1500\n"}
    host = over(host, answers={"interfaces": [*host["answers"]["interfaces"], idle]}, files=files)
    return environment(host, NCCL_SOCKET_IFNAME=name)


HOSTS[575] = (lambda: _second_port("eno4"), lambda: _second_port("eno3"))
HOSTS[576] = (lambda: of_gpu(dgx(), 2, memory_used_bytes=83_700_000_000, processes=[]), dgx)


def _by_version_6(*addresses: str) -> Recording:
    """IPv6 is switched off."""
    host = desktop()
    listed = [
        {**one, "addresses": [own for own in one["addresses"] if own["family"] == "inet"]}
        for one in host["answers"]["interfaces"]
    ]
    files = {"/proc/sys/net/ipv6/conf/all/disable_ipv6": "1\n", "/etc/hosts": [f"{own} localhost" for own in addresses]}
    return over(host, answers={"interfaces": listed, "localhost-addresses": list(addresses)}, files=files)


HOSTS[577] = (lambda: _by_version_6("::1"), lambda: _by_version_6("127.0.0.1"))


def _caps(allowed: bool) -> Recording:
    """A job that was given an instance of MIG: its two nodes below /dev/nvidia-caps."""
    host = of_gpu(slurm(), 0, mig=True, mig_instances=7)
    places = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (66, 67)]
    node: Recording = {"mode": 8484, "uid": 0, "gid": 0, "size": 0}
    stats = {place: {**node, "special": f"238:{number}"} for place, number in zip(places, (66, 67), strict=True)}
    answers: dict[str, Any] = {f"access:{place}": {"read": allowed, "write": False} for place in places}
    host = over(host, stats=stats, dirs={"/dev/nvidia-caps": ["nvidia-cap66", "nvidia-cap67"]}, answers=answers)
    return environment(host, CUDA_VISIBLE_DEVICES="MIG-5c0ffee0-0000-5000-8000-000000000011")


HOSTS[578] = (lambda: _caps(False), lambda: _caps(True))


def _quota(us: int) -> Recording:
    """A container under cgroup v1."""
    place = "/sys/fs/cgroup/cpu,cpuacct/user.slice"
    host = over(rocky(), intent={"ranks": 4, "workers": 4})
    return over(host, files={f"{place}/cpu.cfs_quota_us": f"{us}\n", f"{place}/cpu.cfs_period_us": "100000\n"})


HOSTS[579] = (lambda: _quota(200_000), lambda: _quota(-1))


def _talos(*gone: str) -> Recording:
    named = {"NAME": "Talos", "ID": "talos", "VERSION_ID": "v1.11.2", "PRETTY_NAME": "Talos (v1.11.2)"}
    host = system(ordinary("k8s-h100"), kernel="6.12.48-talos", os_=named)
    return cut(without_modules(host, *gone), *(f"/dev/{name.replace('_', '-')}" for name in gone))


HOSTS[580] = (lambda: _talos("nvidia_uvm"), lambda: _talos())
with_log(
    581,
    dgx,
    "md: kicking non-fresh nvme2n1p1 from array!",
    "md/raid1:md127: active with 1 out of 2 mirrors",
)


def _arc(kib: int) -> Recording:
    """ZFS' cache counts as used memory, and gives way."""
    lines = [
        "13 1 0x01 123 33456 1 1",
        "name type data",
        f"size 4 {kib << 10}",
        "c_min 4 67553994752",
        f"c_max 4 {2_000_000_000 << 10}",
    ]
    host = memory(dgx(), 2_113_500_000)
    kept = [line for line in text(host, "/proc/meminfo") if not line.startswith(("MemFree", "MemAvailable"))]
    free = 2_113_500_000 - 60_000_000 - kib
    amounts = [f"MemFree: {free} kB", f"MemAvailable: {free} kB"]
    return over(host, files={"/proc/meminfo": [*kept, *amounts], "/proc/spl/kstat/zfs/arcstats": lines})


HOSTS[582] = (lambda: _arc(1_990_000_000), lambda: _arc(200_000_000))


@made(583, dgx)
def expander_of_memory() -> Recording:
    """A CXL expander as a node without CPUs."""
    rows: dict[int, tuple[str, int]] = {
        0: ("0-55,112-167", 1_056_000_000),
        1: ("56-111,168-223", 1_056_000_000),
        2: ("", 268_000_000),
    }
    return nodes(dgx(), rows, [[10, 21, 14], [21, 10, 24], [14, 24, 10]])


def _alone(ranks: int) -> Recording:
    host = over(ordinary("docker-workstation"), intent={"ranks": ranks})
    own = host["answers"]["interfaces"][:1]
    return over(host, answers={"interfaces": own, "hostname-addresses": []}, files={"/etc/hosts": ["127.0.0.1 localhost"]})


HOSTS[584] = (lambda: _alone(2), lambda: over(ordinary("docker-workstation"), intent={"ranks": 2}))
with_log(
    586,
    dgx_spark,
    "mlx5_core 0000:01:00.0: mlx5_pcie_event:299:(pid 412): PCIe slot power capability was not advertised.",
    "mlx5_core 0000:01:00.0: mlx5_pcie_event:301:(pid 412): Detected insufficient power on the PCIe slot (27W).",
)


@made(588, lambda: ordinary("k8s-h100"))
def pod_of_gke() -> Recording:
    """Container-Optimized OS: the driver's files come from the node by a mount at /usr/local/nvidia, no loader's cache has them."""
    host = system(ordinary("k8s-h100"), kernel="6.6.93+")
    names = ("libcuda.so", "libnvidia-ml.so")
    kept = {
        section: {path: value for path, value in host[section].items() if path.rpartition("/")[2].startswith(names)}
        for section in ("links", "stats")
    }
    there = {
        section: {f"/usr/local/nvidia/lib64/{path.rpartition('/')[2]}": value for path, value in found.items()}
        for section, found in kept.items()
    }
    host = cut(host, *kept["links"], *kept["stats"])
    return over(host, **there, env={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "PATH": "/usr/local/nvidia/bin:/usr/bin:/bin"})


@made(589, epyc_nps4)
def amd_pstate_active() -> Recording:
    """amd_pstate=active: what is called powersave there follows the preference."""
    host = epyc_nps4()
    policies = sorted({path.rpartition("/")[0] for path in host["files"] if "/cpufreq/policy" in path})
    values = {
        "scaling_driver": "amd-pstate-epp",
        "scaling_governor": "powersave",
        "energy_performance_preference": "balance_performance",
    }
    files = {f"{policy}/{name}": f"{value}\n" for policy in policies for name, value in values.items()}
    return over(host, files={**files, "/sys/devices/system/cpu/amd_pstate/status": "active\n"})


@made(590, lxc)
def container_with_lxcfs() -> Recording:
    """Incus: lxcfs shows eight of the processors and 32 GiB in /proc; /sys shows the whole machine."""
    host = status(lxc(), Cpus_allowed_list="8-15")
    info = [line for number in range(8) for line in (f"processor\t: {number}", *x86("Intel(R) Core(TM) i9-14900K"), "")]
    host = over(host, files={"/proc/cpuinfo": info}, answers={"affinity": "8-15"})
    kept = [line for line in text(host, "/proc/meminfo") if not line.startswith(("MemTotal", "MemFree", "MemAvailable"))]
    return over(
        host, files={"/proc/meminfo": ["MemTotal: 33554432 kB", "MemFree: 20000000 kB", "MemAvailable: 31000000 kB", *kept]}
    )


HOSTS[591] = (
    lambda: logged(
        two_dgx(),
        _SPLIT.format("CPU 3/KVM", 88281, 7),
        'audit: type=1400 audit(1795262000.123:45): apparmor="STATUS" operation="profile_load" profile="unconfined" name="docker-default" pid=812 comm="apparmor_parser"',
        "TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.",
        "TCP: too many orphaned sockets",
        "mlx5_core 0000:9a:00.0: Port module event: module 0, Cable plugged",
    ),
    two_dgx,
)
