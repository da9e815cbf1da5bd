"""
Builders of the hosts 592 to 661 of hosts.csv, of kinds that the catalogue lacked.

Each is a recorded host and what its list changes of it: files, or readings of a GPU. The sealed third is that of which the SHA-256 of the words
divides by three.
"""

from __future__ import annotations

from typing import Any

from hosts_384 import rocky
from hosts_table import HOSTS, desktop, dgx, mi300x, two_dgx

from machines import Recording, ordinary, over, system, text
from platforms import intel_snc4, old_lab_box, optimus_laptop
from platforms_more import kvm_guest
from platforms_troubled import of_gpu

_NET = "/sys/class/net"
_RAILS = ("ens0np0", "ens1np0")
_SESSION = "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope"
_RAPL = "/sys/class/powercap/intel-rapl:0"


def _files(number: int, like: Any, files: dict[str, str], **sections: Any) -> None:
    HOSTS[number] = (lambda: over(like(), files={path: f"{value}\n" for path, value in files.items()}, **sections), like)


def _counted(number: int, like: Any, **ports: dict[str, int]) -> None:
    files: dict[str, str] = {}
    for port, counters in ports.items():
        whole = {
            "rx_packets": 61_442_118_240,
            "rx_crc_errors": 0,
            "rx_missed_errors": 0,
            "rx_dropped": 0,
            "tx_errors": 0,
            **counters,
        }
        files |= {f"{_NET}/{port}/statistics/{name}": str(value) for name, value in whole.items()}
    _files(number, like, files)


_CLEAN = {name: dict[str, int]() for name in _RAILS}
_counted(592, two_dgx, **{**_CLEAN, "ens0np0": {"rx_crc_errors": 48_112_309}})
_counted(593, two_dgx, **_CLEAN, eno3={"rx_packets": 900_112_440, "rx_missed_errors": 41_220_118})
_counted(637, two_dgx, **{**_CLEAN, "ens0np0": {"rx_crc_errors": 12}})
_counted(638, two_dgx, **_CLEAN, eno3={"rx_packets": 900_112_440, "rx_dropped": 911_402})


def _changes(number: int, *counts: int) -> None:
    _files(number, two_dgx, {f"{_NET}/{name}/carrier_changes": str(count) for name, count in zip(_RAILS, counts, strict=True)})


_changes(594, 412, 3)
_changes(639, 9, 9)


def _wired() -> Recording:
    """The desktop by its cable."""
    host = desktop()
    listed = [
        {**one, "operstate": "up", "flags": 0x11043} if one["name"] == "enp6s0" else one for one in host["answers"]["interfaces"]
    ]
    return over(host, answers={"interfaces": listed}, files={f"{_NET}/enp6s0/device/vendor": "0x10ec\n"})


_counted(595, _wired, enp6s0={"rx_packets": 90_112_118, "rx_crc_errors": 2_118_402})
_files(
    640,
    desktop,
    {
        f"{_NET}/enp9s0/{name}": value
        for name, value in {"operstate": "down", "statistics/rx_packets": "0", "statistics/rx_crc_errors": "4"}.items()
    },
)


def _interrupts(number: int, cpus: list[int]) -> None:
    files: dict[str, str] = {}
    dirs: dict[str, list[str]] = {}
    for card, name in enumerate(_RAILS):
        served = {200 + 20 * card + at: cpu for at, cpu in enumerate(cpus)}
        dirs[f"{_NET}/{name}/device/msi_irqs"] = [str(irq) for irq in served]
        files |= {f"/proc/irq/{irq}/effective_affinity_list": str(cpu) for irq, cpu in served.items()}
    _files(number, two_dgx, files, dirs=dirs)


_interrupts(596, [0] * 9)
_interrupts(641, list(range(9)))


def _roce(number: int, counts: list[int]) -> None:
    place = "/sys/class/infiniband/mlx5_{}/ports/1/hw_counters/{}"
    pairs = [(card, name, count) for card, count in enumerate(counts) for name in ("out_of_sequence", "packet_seq_err")]
    _files(number, two_dgx, {place.format(card, name): str(count) for card, name, count in pairs})


_roce(597, [88_112_402, *[60] * 7])
_roce(642, [40, 90, 60, 50, 44, 71, 80, 66])
_files(598, two_dgx, {f"{_NET}/bond0/bonding/mode": "802.3ad 4", f"{_NET}/bond0/bonding/xmit_hash_policy": "layer2 0"})
_files(
    599,
    dgx,
    {"/sys/class/nvme/nvme0/state": "live", "/sys/class/nvme/nvme1/state": "dead", "/sys/class/nvme/nvme1/transport": "pcie"},
)
_files(600, desktop, {"/sys/class/nvme/nvme0/state": "resetting", "/sys/class/nvme/nvme0/transport": "pcie"})
_files(643, dgx, {f"/sys/class/nvme/nvme{at}/state": state for at, state in enumerate(("live", "live", "connecting"))})
_files(601, old_lab_box, {"/sys/block/sdb/device/state": "offline", "/sys/block/sdb/size": "1953525168"})
_files(
    644,
    old_lab_box,
    {"/sys/block/sdb/device/state": "running", "/sys/block/sdz/device/state": "offline", "/sys/block/sdz/size": "0"},
)


def _md(number: int, action: str) -> None:
    _files(number, dgx, {"/sys/block/md0/md/sync_action": action, "/sys/block/md0/md/array_state": "active"})


_md(602, "resync")
_md(645, "check")


def _mounted(number: int, like: Any, line: str, files: dict[str, str]) -> None:
    def build() -> Recording:
        host = like()
        mounts = [*text(host, "/proc/self/mountinfo"), line]
        asked = {"data": ["/data"], **host.get("intent", {})}
        return {**over(host, files={"/proc/self/mountinfo": mounts, **files}), "intent": asked}

    HOSTS[number] = (build, like)


_BTRFS = "90 30 0:90 / /data rw,relatime shared:90 - btrfs /dev/nvme0n1p3 rw,ssd,space_cache=v2"
_STATS = "/sys/fs/btrfs/5a1c0f6e-0000-4000-8000-000000000001/devinfo/1/error_stats"
_NONE = "write_errs 0\nread_errs 0\nflush_errs 0\ncorruption_errs {}\ngeneration_errs 0\n"
_mounted(603, desktop, _BTRFS, {_STATS: _NONE.format(512)})
_mounted(646, desktop, _BTRFS, {_STATS: _NONE.format(0)})
_ZFS = "90 30 0:90 / /data rw,noatime shared:90 - zfs tank/data rw,xattr,noacl"
_mounted(604, desktop, _ZFS, {"/proc/spl/kstat/zfs/tank/state": "DEGRADED\n"})
_mounted(647, desktop, _ZFS, {"/proc/spl/kstat/zfs/tank/state": "ONLINE\n"})
_NFS = "90 30 0:90 / /data rw,relatime shared:90 - nfs4 10.0.0.9:/data rw,vers=4.2,rsize=1048576,wsize=1048576,{},proto=tcp,nconnect=8"
_mounted(605, dgx, _NFS.format("hard,sync,timeo=600,retrans=2"), {})
_mounted(606, dgx, _NFS.format("soft,timeo=10,retrans=2"), {})
_files(607, dgx, {f"{_SESSION}/io.max": "259:0 rbps=10485760 wbps=max riops=max wiops=max"})
_files(608, lambda: ordinary("docker-workstation"), {"/sys/fs/cgroup/io.max": "259:0 rbps=max wbps=max riops=100 wiops=100"})
_files(648, dgx, {f"{_SESSION}/io.max": "", f"{_SESSION}/io.weight": "default 100"})
_files(649, dgx, {f"{_SESSION}/io.max": "259:0 rbps=8589934592 wbps=8589934592 riops=max wiops=max"})


def _uncore(number: int, most: int) -> None:
    place = "/sys/devices/system/cpu/intel_uncore_frequency/package_0{}_die_00/{}"
    values = {"max_freq_khz": most, "initial_max_freq_khz": 2_200_000, "min_freq_khz": 800_000}
    _files(number, intel_snc4, {place.format(package, name): str(value) for package in (0, 1) for name, value in values.items()})


_uncore(609, 1_200_000)
_uncore(650, 2_200_000)


def _power(number: int, like: Any, limit: int, most: int) -> None:
    values = {
        "name": "package-0",
        "constraint_0_name": "long_term",
        "constraint_0_power_limit_uw": limit,
        "constraint_0_max_power_uw": most,
    }
    _files(number, like, {f"{_RAPL}/{name}": str(value) for name, value in values.items()})


_power(610, intel_snc4, 100_000_000, 350_000_000)
_power(651, intel_snc4, 350_000_000, 350_000_000)
_power(652, lambda: over(optimus_laptop(), files={"/sys/class/dmi/id/chassis_type": "10\n"}), 28_000_000, 45_000_000)


def _kernel(number: int, like: Any, release: str, **files: str) -> None:
    HOSTS[number] = (
        lambda: over(
            system(like(), kernel=release), files={"/" + name.replace("__", "/"): value for name, value in files.items()}
        ),
        like,
    )


_kernel(611, desktop, "6.8.1-1015-realtime", sys__kernel__realtime="1\n")
_kernel(612, rocky, "5.14.0-570.58.1.el9_6.x86_64+debug")
_kernel(653, rocky, "5.14.0-570.58.1.el9_6.x86_64")
_kernel(654, desktop, "6.8.0-87-lowlatency")
_files(613, dgx, {f"{_SESSION}/cpu.idle": "1", f"{_SESSION}/cpu.weight": "0"})
_files(614, dgx, {f"{_SESSION}/cpu.idle": "0", f"{_SESSION}/cpu.weight": "1"})
_files(655, dgx, {f"{_SESSION}/cpu.idle": "0", f"{_SESSION}/cpu.weight": "39"})
_files(615, dgx, {"/proc/loadavg": "512.20 498.10 470.33 520/6000 91234"})
_files(656, dgx, {"/proc/loadavg": "9.20 8.10 7.33 3/2000 91234"})
_PRESSURE = "some avg10={0} avg60={0} avg300={0} total=9112024112\nfull avg10={1} avg60={1} avg300={1} total=8112024112"
_files(616, dgx, {"/proc/pressure/memory": _PRESSURE.format("51.20", "45.10")})
_files(617, dgx, {"/proc/pressure/io": _PRESSURE.format("91.20", "77.10")})
_files(
    657, dgx, {"/proc/pressure/memory": _PRESSURE.format("0.40", "0.20"), "/proc/pressure/io": _PRESSURE.format("12.10", "4.00")}
)
_files(
    618,
    kvm_guest,
    {
        f"/sys/kernel/mm/ksm/{name}": value
        for name, value in {"run": "1", "pages_sharing": "4112400", "pages_to_scan": "4000", "sleep_millisecs": "10"}.items()
    },
)
_files(619, intel_snc4, {f"/sys/devices/system/cpu/cpu{cpu}/power/energy_perf_bias": "15" for cpu in range(4)})
_files(620, dgx, {"/sys/kernel/mm/transparent_hugepage/defrag": "[always] defer defer+madvise madvise never"})
_files(
    621,
    dgx,
    {
        f"{_SESSION}/memory.high": str(8 << 30),
        f"{_SESSION}/memory.current": str(8 << 30),
        f"{_SESSION}/memory.events": "low 0\nhigh 911402\nmax 0\noom 0\noom_kill 0",
    },
)
_files(622, dgx, {"/proc/sys/vm/dirty_bytes": "1048576", "/proc/sys/vm/dirty_ratio": "0"})
_files(623, dgx, {"/proc/sys/vm/panic_on_oom": "1"})


def _corrupted(number: int, like: Any, kib: int) -> None:
    def build() -> Recording:
        lines = [line for line in text(like(), "/proc/meminfo") if not line.startswith("HardwareCorrupted")]
        return over(like(), files={"/proc/meminfo": [*lines, f"HardwareCorrupted: {kib:5} kB"]})

    HOSTS[number] = (build, like)


_corrupted(624, dgx, 16384)
_corrupted(625, old_lab_box, 8)
_corrupted(658, dgx, 0)


def _amd(host: Recording) -> list[str]:
    found = {
        path.split("/")[5] for path in {**host["files"], **host.get("links", {})} if path.startswith("/sys/bus/pci/devices/")
    }
    return sorted(place for place in found if host["files"].get(f"/sys/bus/pci/devices/{place}/vendor", "").strip() == "0x1002")


def _of_amd(number: int, name: str, first: str, others: str, **same: str) -> None:
    values = {place: first if at == 0 else others for at, place in enumerate(_amd(mi300x()))}
    more = {f"/sys/bus/pci/devices/{place}/{key.replace('__', '/')}": value for place in values for key, value in same.items()}
    _files(number, mi300x, {**{f"/sys/bus/pci/devices/{place}/{name}": value for place, value in values.items()}, **more})


_of_amd(626, "hwmon/hwmon5/power1_cap", "300000000", "750000000", hwmon__hwmon5__power1_cap_default="750000000")
_of_amd(659, "hwmon/hwmon5/power1_cap", "700000000", "750000000", hwmon__hwmon5__power1_cap_default="750000000")
_of_amd(627, "current_compute_partition", "CPX", "SPX")
_of_amd(660, "current_compute_partition", "CPX", "CPX")
HOSTS[628] = (lambda: of_gpu(dgx(), 3, ecc_pending=False), dgx)
_files(629, dgx, {"/sys/module/pcie_aspm/parameters/policy": "default performance powersave [powersupersave]"})
_files(
    661,
    dgx,
    {
        "/sys/module/pcie_aspm/parameters/policy": "[default] performance powersave powersupersave",
        f"{_SESSION}/memory.events": "low 0\nhigh 3\nmax 0\noom 0\noom_kill 0",
    },
)
_files(631, rocky, {"/etc/tuned/active_profile": "powersave"})
_files(632, dgx, {f"/sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs": "812" for unit in ("numad", "earlyoom")})
_files(633, dgx, {"/proc/sys/kernel/core_pattern": "core"})
_files(634, two_dgx, {"/proc/sys/net/ipv4/tcp_retries2": "2"})
_files(635, dgx, {"/proc/sys/fs/file-nr": "9990112\t0\t10000000"})
_files(636, dgx, {"/sys/block/nvme2n1/ro": "1"})
HOSTS[630] = (two_dgx, two_dgx)  # the recorded cards have no configuration space: not built
