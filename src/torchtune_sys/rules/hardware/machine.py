"""The machine's clock, heat and size."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Service
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, need, need_any, need_if_there
from torchtune_sys.rules.gates import gpu_host, not_in_container
from torchtune_sys.rules.torch.cpu_only import jetson

_REACH = (
    "see which servers it asks and whether they answer (chronyc sources -v, timedatectl timesync-status, ntpq -p): name one that this network "
    "reaches, and let UDP port 123 pass; a second time daemon would only stop this one"
)
_TIME_FIX = (Service(unit="systemd-timesyncd", state="enabled"), Advice(text="or use chrony, as most clusters do"))


@rule(
    id="clock-not-synchronised",
    title="The system clock is not synchronised",
    severity=Severity.ADVICE,
    fix=_TIME_FIX,
    applies=not_in_container,
)
def clock_not_synchronised(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """No time daemon runs under systemd, or the running one has not reached a server (for chrony, checked only with --live).

    Why it matters
        Timestamps of logs and files cannot be trusted. Once the clock is off by a few minutes, Kerberos tickets and signed
        requests to object stores are refused.

    When to leave it
        The hypervisor, or a PTP service that is not a unit of this host, synchronises the clock; or the host is standalone and
        offline.

    References
        systemd-timesyncd.service(8), /run/systemd/timesync/synchronized
        chronyc(1), tracking
        https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html (RequestTimeTooSkewed)
    """
    if (s.intent.nodes or 1) > 1:
        raise NotApplicable("a multi-node job: see clock-of-node-not-synchronised")
    yield _clock(s)


@rule(
    id="clock-of-node-not-synchronised",
    title="The system clock of a node of a multi-node job is not synchronised",
    severity=Severity.WARNING,
    fix=_TIME_FIX,
    applies=not_in_container,
)
def clock_of_node_not_synchronised(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Same as clock-not-synchronised, for a host that takes part in a multi-node job (--nnodes).

    Why it matters
        Hosts drift apart by seconds per week. When a collective hangs, their logs cannot be compared; traces of several ranks do
        not line up; and Slurm's credentials expire too early or are not valid yet.

    When to leave it
        The hypervisor or a PTP service that is not a unit of this host synchronises the clock.

    References
        systemd-timesyncd.service(8), chronyc(1)
        https://slurm.schedmd.com/quickstart_admin.html (clocks of the cluster)
    """
    if s.intent.nodes is None or s.intent.nodes < 2:
        raise NotApplicable("no multi-node job was specified (--nnodes)")
    yield _clock(s)


def _clock(s: Snapshot) -> Evidence:
    system = need(s.system)
    told = bool(known(need(s.hardware).clock_daemon, ""))  # by whatever starts it
    other = not told and (absent(system.init) or need(system.init) != "systemd")
    if other or known(system.hypervisor, "") in ("wsl1", "wsl2"):
        raise NotApplicable("no systemd here, or Windows synchronises the clock")
    daemon = need_if_there(need(s.hardware).clock_daemon, "the host's services are not seen from here")
    synchronised = need(s.hardware).clock_synchronised
    silent = isinstance(synchronised, Missing) and synchronised.why is Why.NOT_SUPPORTED
    good = silent or need(synchronised)
    reach = (Advice(text=_REACH),) if daemon and not good else ()
    return Evidence(
        subject="clock",
        seen=f"{daemon} runs" + ", and has not reached a server" * (not good) if daemon else "no time daemon runs",
        wanted="kept by a time daemon",
        verdict=Verdict.PASS if good else Verdict.FAIL,
        source="/sys/fs/cgroup/system.slice, /run/systemd/timesync",
        fix=reach,
    )


@rule(
    id="clocksource-slow",
    title="The kernel uses a slow clock source",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="find out why the kernel rejected the TSC: dmesg | grep -i tsc (firmware, or unsynchronised CPUs); upgrade the "
            "firmware"
        ),
        Advice(
            text="boot with tsc=reliable, but only where the vendor states that the TSCs of all sockets are synchronised; "
            "otherwise time may go backwards"
        ),
    ),
    applies=not_in_container,
)
def clocksource_slow(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Reading hpet, acpi_pm and similar clocks takes a system call and an access to a device each time.

    Why it matters
        Programs read the clock millions of times: each log line, profiler event and polling loop then costs a microsecond or more
        instead of tens of nanoseconds.

    When to leave it
        The kernel rejected the TSC for a good reason, and nothing on this host reads the clock in a loop.

    References
        https://docs.kernel.org/virt/kvm/x86/timekeeping.html
        clock_gettime(2), vdso(7): only tsc, kvm-clock (pvclock) and Hyper-V's page are read without a system call
    """
    found = need_if_there(need(s.hardware).clocksource, "this kernel shows no clock source")
    slow = found in ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
    yield Evidence(
        subject="clocksource",
        seen=found,
        wanted="tsc (on a virtual machine: its own clock)",
        verdict=Verdict.FAIL if slow else Verdict.PASS,
        source="/sys/devices/system/clocksource/clocksource0/current_clocksource",
    )


@rule(
    id="cpu-throttled-for-heat",
    title="The CPUs have been throttled because of heat since boot",
    severity=Severity.ADVICE,
    explained_by=("cpu-thermal-throttle-logged",),
    params=(Param("per_day", 100, "throttling events per day since boot from which on they are reported (a convention)"),),
    fix=(Advice(text="check fans, air flow and inlet temperature (ipmitool sensor), which also affect the GPUs"),),
)
def cpu_throttled_for_heat(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The package's thermal throttle counter shows how often it has reached its temperature limit.

    Why it matters
        A throttled processor feeds its GPUs more slowly, and one host at a lower clock slows down the whole job.

    When to leave it
        The count comes from a single event long ago: it accumulates since boot.

    References
        Linux Documentation/ABI/testing/sysfs-devices-system-cpu (thermal_throttle)
    """
    found = need(s.hardware).throttled
    if absent(found):
        raise NotApplicable("this processor does not count throttling")
    if known(need(s.hardware).portable, False):
        raise NotApplicable("a laptop: thermal throttling is normal")
    count = need(found)
    days = max(need(need(s.system).uptime_s) / 86400, 1.0)
    limit = float(p["per_day"]) * days
    yield Evidence(
        subject="processor packages",
        seen=f"throttled {count} times in {days:.1f} days",
        wanted=f"< {limit:.0f}",
        verdict=Verdict.FAIL if count >= limit else Verdict.PASS,
        source="/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count",
    )


@rule(
    id="temperature-near-limit",
    title="A temperature is close to its critical limit",
    severity=Severity.WARNING,
    params=(
        Param("margin_celsius", 5, "distance to the hot or critical trip point (a convention; sensors are off by a few degrees)"),
    ),
    fix=(Advice(text="check fans, air flow and inlet temperature before the next long job"),),
)
def temperature_near_limit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A thermal zone, NVMe drive or network card is within a few degrees of its critical temperature.

    Why it matters
        At the critical trip point Linux powers the machine off, and the job is lost. A drive at its limit stops or throttles
        severely; a network card takes its link down.

    When to leave it
        The sensor is known to be wrong (it shows the same value on an idle, cold machine).

    References
        https://docs.kernel.org/driver-api/thermal/sysfs-api.html (trip points: hot, critical)
        https://docs.kernel.org/hwmon/sysfs-interface.html (temp1_crit); NVM Express base specification, CCTEMP
        Linux drivers/nvme/host/hwmon.c, drivers/net/ethernet/mellanox/mlx5/core/hwmon.c
    """
    for zone in need_any(need(s.hardware).zones, "no thermal zone, drive or network card with a critical limit"):
        hot = zone.celsius >= zone.limit_celsius - float(p["margin_celsius"])
        yield Evidence(
            subject=zone.name,
            seen=f"{zone.celsius:.0f} °C",
            wanted=f"well below {zone.limit_celsius:.0f} °C",
            verdict=Verdict.FAIL if hot else Verdict.PASS,
            source="/sys/class/thermal, /sys/class/hwmon",
        )


def _takes_other_memory(s: Snapshot) -> None:
    """Require a GPU that is no part of a module: a Jetson's memory and processor are soldered to it."""
    gpu_host(s)
    if jetson(s):
        raise NotApplicable("a module with the GPU on the processor's chip")


@rule(
    id="host-small-for-gpu-training",
    title="The host is small for training on a GPU",
    severity=Severity.ADVICE,
    params=(Param("cores", 8, "processor cores"), Param("gib", 60, "GiB of memory (what Linux shows of 64 GB)")),
    fix=(Advice(text="rent a larger machine, or move decoding and caching off this host"),),
    applies=_takes_other_memory,
)
def host_small_for_gpu_training(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The host has fewer than 8 cores or less than 64 GB, the usual recommendation for one training GPU.

    Why it matters
        DataLoader workers, pinned buffers, the data set's page cache and checkpoints being written all need host memory and CPUs.

    When to leave it
        The data is small or preprocessed, and measurements show that the GPU is busy.

    References
        https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (workers, pinned memory)
        ml-engineering, compute/cpu and compute/cpu-memory
    """
    from_cpus = need(need(s.cpu).cores), float(p["cores"])
    memory = need(need(s.memory).total_bytes) / (1 << 30), float(p["gib"])
    for subject, (have, floor), unit in (("cores", from_cpus, ""), ("memory", memory, " GiB")):
        verdict = Verdict.FAIL if have < floor else Verdict.PASS
        yield Evidence(subject=subject, seen=f"{have:.0f}{unit}", wanted=f">= {floor:.0f}{unit}", verdict=verdict, source="/proc")


@rule(
    id="laptop-on-battery",
    title="The machine runs on its battery",
    severity=Severity.WARNING,
    fix=(Advice(text="connect the power adapter (one of the full wattage), and start the training again"),),
    applies=not_in_container,
)
def laptop_on_battery(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A battery of the system is discharging, and no adapter gives power.

    Why it matters
        Firmware and driver then lower the power limits of processor and GPU, often to less than half: a step takes several times as long,
        and the run ends when the battery is empty or the machine suspends.

    When to leave it
        Only a short test is to run.

    References
        Linux Documentation/ABI/testing/sysfs-class-power (type, scope, status, online)
        NVIDIA's driver README, "Dynamic Boost on Linux": it is off on battery power
    """
    on_battery = need_if_there(need(s.hardware).on_battery, "the system has no battery")
    yield Evidence(
        subject="power",
        seen="the battery is discharging" if on_battery else "from an adapter, or the battery is not used",
        wanted="from an adapter",
        verdict=Verdict.FAIL if on_battery else Verdict.PASS,
        source="/sys/class/power_supply",
    )
