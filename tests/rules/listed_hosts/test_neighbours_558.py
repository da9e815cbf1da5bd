"""Healthy neighbours of the tenth list's faults, and hosts that a reading of the rules by family found to be judged wrongly; beside each class one that is wrong."""

from __future__ import annotations

import pytest
from hosts_041 import _WHOLE, _array
from hosts_082 import _mounted
from hosts_141 import _amd_gpus
from hosts_336 import _added
from hosts_424 import gh200, rhel_login
from hosts_478 import _torch_2_3
from hosts_table import HOSTS, desktop, dgx, two_dgx
from test_listed_hosts import _seen

from conftest import judge_one
from machines import Recording, cut, environment, over, status, torch
from platforms import epyc_nps4, mi300x_container
from platforms_more import kvm_guest, oci_h100
from platforms_owners import gaming_laptop, mig_server
from platforms_troubled import logged
from torchtune_sys.model.rule import Verdict

_CAPPED, _MTUS, _MEMORY, _PINNED = (
    "cpu-frequency-capped",
    "rail-mtu-mismatch",
    "host-memory-below-gpu-memory",
    "session-pinned-to-few-cpus",
)
_ROCM, _LOGOUT, _ADAPTER, _DISKS = (
    "rocm-device-permission",
    "logind-kills-processes",
    "network-adapter-fault",
    "disk-errors-logged",
)
_SMMU, _UNCORRECTED, _HELD, _TCP = (
    "iommu-fault-of-gpu",
    "memory-uncorrected-errors",
    "programs-held-up-logged",
    "tcp-memory-full-logged",
)
_OLD, _BOND, _ARRAY = "torch-release-old", "bond-port-down", "md-array-degraded"
_LOST = "igc 0000:05:00.0 enp6s0: PCIe link lost, device now detached"
_IDLED = "intel_powerclamp: Start idle injection to reduce power"
_QUEUE = "audit: audit_backlog=8193 > audit_backlog_limit=8192"


def _stepped(allowed: int, steps: str | None = "2450000 2000000 1500000") -> Recording:
    """An EPYC 7763 below acpi-cpufreq of Linux 5.12 and later: cpuinfo_max_freq has the boost frequency, the steps end at the base clock."""
    host = epyc_nps4()
    files: Recording = {}
    for policy in sorted({path.rpartition("/")[0] for path in host["files"] if "/cpufreq/policy" in path}):
        values = {"scaling_max_freq": allowed, "cpuinfo_max_freq": 3529052}
        files |= {f"{policy}/{name}": f"{value}\n" for name, value in values.items()}
        files[f"{policy}/scaling_available_frequencies"] = {"error": "denied"} if steps is None else f"{steps} \n"
    return over(host, files=files)


def _rails(odd: str, mtu: int, route: str) -> Recording:
    host = over(oci_h100(), intent={"nodes": 2})
    routes = [
        line if number == 0 else "\t".join((route, *line.split()[1:]))
        for number, line in enumerate(host["files"]["/proc/net/route"])
        if number == 0 or line.split()[1] == "00000000"
    ]
    boards = {f"/sys/class/infiniband/mlx5_{number}/board_id": "ORC0000000005\n" for number in range(16)}
    listed = [{**one, "mtu": mtu} if one["name"] == odd else one for one in host["answers"]["interfaces"]]
    return over(host, files={**boards, "/proc/net/route": routes}, answers={"interfaces": listed})


def _at_start(host: Recording, *lines: str) -> Recording:
    log = host["answers"]["kernel-log"]
    stamped = [f"[{12 + number:5}.000000] {line}" for number, line in enumerate(lines)]
    return over(host, answers={"kernel-log": {**log, "lines": [log["lines"][0], *stamped, *log["lines"][1:]]}})


def _limited(host: Recording, gib: int) -> Recording:
    group = "/sys/fs/cgroup/user.slice"
    return over(host, files={"/proc/self/cgroup": "0::/user.slice\n", f"{group}/memory.max": f"{gib << 30}\n"})


def _pinned(host: Recording) -> Recording:
    return status(over(host, answers={"affinity": "0-1"}), Cpus_allowed_list="0-1")


def _with_nodes(*there: str, listed: bool = True) -> Recording:
    """AMD's image, with what of the GPUs' render nodes docker run was told to hand over."""
    host = torch(mi300x_container(), "2.10.0+rocm7.0", hip="7.0.51831")
    names = [f"renderD{128 + number}" for number in range(8)]
    folders = dict(
        zip(
            (f"{place}/drm" for place in _amd_gpus(host)),
            ([f"card{number}", name] for number, name in enumerate(names)),
            strict=True,
        )
    )
    node: Recording = {"mode": 8624, "uid": 0, "gid": 109, "size": 0, "special": "226:128"}
    return over(host, dirs=folders if listed else {}, stats={f"/dev/dri/{name}": node for name in there})


def _at_logout(*lines: str) -> Recording:
    mia = {"uid": 1000, "gid": 1000, "groups": [1000], "user": "mia"}
    return over(rhel_login(), files={"/etc/systemd/logind.conf": ["[Login]", *lines]}, answers={"uid": mia})


def _mirrored(missing: int) -> Recording:
    host, place = epyc_nps4(), "/sys/devices/virtual/block/md0"
    mounts = [*host["files"]["/proc/self/mountinfo"], "51 30 9:0 / /raid rw,relatime shared:35 - xfs /dev/md0 rw"]
    values = {"dev": "9:0", "md/level": "raid1", "md/degraded": missing}
    files = {f"{place}/{name}": f"{value}\n" for name, value in values.items()}
    links = {"/sys/dev/block/9:0": "../../devices/virtual/block/md0"}
    return over(host, files={"/proc/self/mountinfo": mounts, **files}, links=links)


def _lost_links(count: int) -> Recording:
    host = HOSTS[531][0]()
    down = [each["name"] for each in host["answers"]["interfaces"] if each["master"] and each["operstate"] == "down"]
    return over(host, files={f"/sys/class/net/{name}/bonding_slave/link_failure_count": f"{count}\n" for name in down})


def _docked(there: bool) -> Recording:
    host = logged(desktop(), _LOST)
    place = "pci0000:00/0000:00:1c.0/0000:05:00.0"
    values = {"vendor": "0x8086", "class": "0x020000", "device": "0x15f3"}
    files = {f"/sys/devices/{place}/{name}": f"{value}\n" for name, value in values.items()}
    return over(host, files=files, links={"/sys/bus/pci/devices/0000:05:00.0": f"../../../devices/{place}"}) if there else host


def _record(severity: str) -> Recording:
    head = "{1}[Hardware Error]: "
    return logged(
        gh200(),
        f"{head}Hardware error from APEI Generic Hardware Error Source: 0",
        f"{head}event severity: {severity}",
        f"{head} Error 0, type: {severity}",
        f"{head}  section_type: ARM processor error",
    )


def _started(active: int, of: int, degraded: int | None = None) -> Recording:
    host = dgx() if degraded is None else _array(degraded, [_WHOLE])
    return logged(host, f"md/raid:md0: raid level 5 active with {active} out of {of} devices, algorithm 2")


def _saved(link: str, data: str) -> Recording:
    """A virtual machine of Azure: a disk for data, and the temporary one at /mnt, which look the same."""
    host = _mounted(kvm_guest(), "/mnt", "- ext4 /dev/sdb1 rw,relatime")
    disk = "/sys/devices/LNXSYSTM:00/VMBUS:01/f8b3781b-1e82-4818-a1c3-63d806ec15bb/host0/target0:0:0/0:0:0:1/block/sdb"
    files = {f"{disk}/device/model": "Virtual Disk\n", f"{disk}/device/vendor": "Msft\n", f"{disk}/queue/rotational": "1\n"}
    files |= {f"{disk}/dev": "8:16\n", f"{disk}/sdb1/partition": "1\n"}
    links = {
        "/sys/block/sdb": f"..{disk[4:]}",
        "/sys/class/block/sdb1": f"../..{disk[4:]}/sdb1",
        "/sys/dev/block/0:60": f"../..{disk[4:]}/sdb1",
    }
    return over(host, files=files, links={**links, link: data}, intent={"checkpoints": ["/mnt"]})


VARIANTS = {
    "a file of NCCL's that switches shared memory off for one GPU": (
        "nccl-conf-hides-setting",
        lambda: over(desktop(), files={"/etc/nccl.conf": "NCCL_SHM_DISABLE=1\n"}),
        Verdict.PASS,
    ),
    "a file of NCCL's that switches shared memory off for eight": (
        "nccl-conf-hides-setting",
        lambda: over(dgx(), files={"/etc/nccl.conf": "NCCL_SHM_DISABLE=1\n"}),
        Verdict.FAIL,
    ),
    "checkpoints on Azure's temporary disk": (
        "checkpoints-on-volatile-storage",
        lambda: _saved("/dev/disk/cloud/azure_resource", "../../sdb"),
        Verdict.FAIL,
    ),
    "checkpoints on another disk of Azure's": (
        "checkpoints-on-volatile-storage",
        lambda: _saved("/dev/disk/azure/resource", "../../sda"),
        Verdict.PASS,
    ),
    "a laptop whose cable comes and goes": (
        "network-link-flapping",
        lambda: logged(
            over(gaming_laptop(), files={"/sys/class/dmi/id/chassis_type": "10\n"}),
            *["igc 0000:56:00.0 enp86s0: NIC Link is Down"] * 5,
        ),
        Verdict.PASS,
    ),
    "a server whose link comes and goes": (
        "network-link-flapping",
        lambda: logged(dgx(), *["ice 0000:31:00.0 eno3: NIC Link is Down"] * 5),
        Verdict.FAIL,
    ),
    "acpi-cpufreq at its highest step, below the boost frequency": (_CAPPED, lambda: _stepped(2_450_000), Verdict.PASS),
    "acpi-cpufreq held below its highest step": (_CAPPED, lambda: _stepped(1_500_000), Verdict.FAIL),
    "acpi-cpufreq whose steps may not be read": (_CAPPED, lambda: _stepped(2_450_000, None), Verdict.UNKNOWN),
    "the port of the default route has another MTU": (_MTUS, lambda: _rails("rdma3", 1500, "rdma3"), Verdict.PASS),
    "a VLAN of such a port has the default route": (_MTUS, lambda: _rails("rdma3", 1500, "rdma3.100"), Verdict.PASS),
    "a rail has another MTU": (_MTUS, lambda: _rails("rdma3", 1500, "rdma5"), Verdict.FAIL),
    "one of eight GPUs in a job with its share of memory": (
        _MEMORY,
        lambda: environment(_limited(dgx(), 200), CUDA_VISIBLE_DEVICES="3"),
        Verdict.PASS,
    ),
    "eight GPUs with a share of memory": (_MEMORY, lambda: _limited(dgx(), 200), Verdict.FAIL),
    "an instance of MIG with little memory of the host": (_MEMORY, lambda: _limited(mig_server(), 32), Verdict.NA),
    "a container that does not see what its cgroup may use": (
        _PINNED,
        lambda: _pinned(cut(mi300x_container(), "/sys/fs/cgroup/cpuset")),
        Verdict.UNKNOWN,
    ),
    "a session on two of all processors": (_PINNED, lambda: _pinned(desktop()), Verdict.FAIL),
    "a ROCm container without render nodes": (_ROCM, _with_nodes, Verdict.FAIL),
    "a ROCm container with one of eight render nodes": (_ROCM, lambda: _with_nodes("renderD131"), Verdict.PASS),
    "a kernel that lists no render nodes": (_ROCM, lambda: _with_nodes(listed=False), Verdict.PASS),
    "KillOnlyUsers names this user": (
        _LOGOUT,
        lambda: _at_logout("KillUserProcesses=no", "KillOnlyUsers=guest mia"),
        Verdict.FAIL,
    ),
    "KillOnlyUsers names another": (_LOGOUT, lambda: _at_logout("KillUserProcesses=yes", "KillOnlyUsers=guest"), Verdict.PASS),
    "KillOnlyUsers names this user and KillExcludeUsers too": (
        _LOGOUT,
        lambda: _at_logout("KillOnlyUsers=mia", "KillExcludeUsers=mia"),
        Verdict.PASS,
    ),
    "KillOnlyUsers was taken back": (_LOGOUT, lambda: _at_logout("KillOnlyUsers=mia", "KillOnlyUsers="), Verdict.PASS),
    "an adapter that lost its link and is still there": (_ADAPTER, lambda: _docked(True), Verdict.FAIL),
    "an adapter of a dock that was taken away": (_ADAPTER, lambda: _docked(False), Verdict.PASS),
    "a reset that helped": (
        _ADAPTER,
        lambda: logged(dgx(), "ice 0000:31:00.0 eno3: tx_timeout recovery level 1, txqueue 31"),
        Verdict.PASS,
    ),
    "an array that started whole": (_DISKS, lambda: _started(4, 4), Verdict.PASS),
    "an array that started without a member": (_DISKS, lambda: _started(3, 4), Verdict.FAIL),
    "an array that is whole by now": (_DISKS, lambda: _started(3, 4, degraded=0), Verdict.PASS),
    "an event of the SMMU for a drive": (
        _SMMU,
        lambda: logged(
            gh200(),
            "arm-smmu-v3 arm-smmu-v3.3.auto: event: F_TRANSLATION client: 0004:01:00.0 sid: 0x100 ssid: 0x0 iova: 0x0 ipa: 0x0",
        ),
        Verdict.PASS,
    ),
    "a corrected error of a processor, by its firmware": (_UNCORRECTED, lambda: _record("corrected"), Verdict.PASS),
    "an error of a processor, by its firmware": (_UNCORRECTED, lambda: _record("fatal"), Verdict.FAIL),
    "idle injection on a laptop": (
        _HELD,
        lambda: logged(over(gaming_laptop(), files={"/sys/class/dmi/id/chassis_type": "10\n"}), *[_IDLED] * 20),
        Verdict.PASS,
    ),
    "idle injection on a server": (_HELD, lambda: logged(dgx(), *[_IDLED] * 20), Verdict.FAIL),
    "a queue that was full once": (_HELD, lambda: logged(dgx(), _QUEUE), Verdict.PASS),
    "a queue that is full until auditd reads": (_HELD, lambda: _at_start(dgx(), *[_QUEUE] * 9), Verdict.PASS),
    "what auditd itself says at its start": (
        _HELD,
        lambda: logged(
            dgx(), *["audit: type=1305 audit(1795262000.1:3): op=set audit_backlog_limit=8192 old=64 auid=4294967295"] * 9
        ),
        Verdict.PASS,
    ),
    "memory of TCP used up once": (
        _TCP,
        lambda: logged(two_dgx(), "TCP: out of memory -- consider tuning tcp_mem"),
        Verdict.PASS,
    ),
    "Transformers 4 with torch 2.3": (_OLD, lambda: _added(_torch_2_3(), "transformers-4.57.1"), Verdict.PASS),
    "Transformers 5 with torch 2.11": (_OLD, lambda: _added(desktop(), "transformers-5.1.0"), Verdict.PASS),
    "Transformers 5 with torch 2.3": (_OLD, lambda: _added(_torch_2_3(), "transformers-5.1.0"), Verdict.FAIL),
    "a bond with both ports": (_BOND, HOSTS[531][1], Verdict.PASS),
    "a mirror that nobody named": (_ARRAY, lambda: _mirrored(0), Verdict.PASS),
    "a mirror that nobody named and that lost a disk": (_ARRAY, lambda: _mirrored(1), Verdict.FAIL),
    "a bond that lacks a port": (_BOND, HOSTS[531][0], Verdict.FAIL),
    "a bond whose port lost its link": (_BOND, lambda: _lost_links(9), Verdict.FAIL),
    "a bond whose port never had one": (_BOND, lambda: _lost_links(0), Verdict.UNKNOWN),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_neighbour_is_judged_rightly(name: str) -> None:
    rule_id, build, verdict = VARIANTS[name]
    found = judge_one(_seen(build), rule_id)
    assert found.verdict is verdict, found


def test_what_ends_a_user_at_logout_is_named() -> None:
    (item,) = judge_one(_seen(lambda: _at_logout("KillOnlyUsers=mia")), _LOGOUT).evidence
    assert item.seen == "for this user" and "logind.conf:2" in item.source


def test_arm_gets_its_own_boot_argument() -> None:
    (item,) = judge_one(_seen(HOSTS[566][0]), _SMMU).evidence
    assert "iommu.passthrough=1" in str(item.fix) and "iommu=pt" not in str(item.fix)
