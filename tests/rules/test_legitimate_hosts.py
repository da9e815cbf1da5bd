"""Legitimate configurations: a recorded host with files, answers or variables laid over it, in which one rule must find nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from altered import asked, result

from conftest import HOSTS, load
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot

_GPU = "/sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0/"
_SLICE = "/sys/fs/cgroup/user.slice/user-1000.slice/"
_STUBS = "/usr/local/cuda/lib64/stubs/libcuda.so"
_BINARY = {"mode": 33188, "uid": 0, "gid": 0, "size": 1}


def _failing(rule_id: str) -> dict[str, Any]:
    """What tests/hosts lays over the healthy host to make this rule fail."""
    return dict(json.loads((HOSTS / f"{rule_id}.fail.json").read_bytes()))


def _frequency(files: Mapping[str, str]) -> dict[str, str]:
    policies = {
        name.split("/")[6] for name in json.loads((HOSTS / "base-cpu.json").read_bytes())["files"] if "cpufreq/policy" in name
    }
    return {f"/sys/devices/system/cpu/cpufreq/{policy}/{name}": text for policy in policies for name, text in files.items()}


def _logged(*lines: str) -> Snapshot:
    log = _failing("kernel-crash-logged")["answers"]["kernel-log"]
    return load("healthy", answers={"kernel-log": log | {"lines": [*log["lines"][:-1], *lines]}})


def _interfaces(*names: str, **changed: str) -> dict[str, Any]:
    known = _failing("network-interface-shaped")["answers"]["interfaces"]
    return {
        "interfaces": [item | (changed if item["name"] == "eno1" else {}) for item in known if not names or item["name"] in names]
    }


def _gpus(name: str, count: int = 1, **facts: Any) -> Snapshot:
    cards = [{"index": index, "name": name, "pci_address": f"0000:{27 + index:02x}:00.0", **facts} for index in range(count)]
    return load(
        "base-single-gpu", answers={"nvml": {"driver_version": "580.95.05", "cuda_driver_version": "13.0", "devices": cards}}
    )


def _taint(*bits: int) -> Snapshot:
    return load("healthy", files={"/proc/sys/kernel/tainted": f"{sum(1 << bit for bit in bits)}\n"})


def _full(**read_only: Any) -> dict[str, Any]:
    return {"size": 8 << 20, "free": 0, "inodes": 0, "inodes_free": 0, "read_only": True, **read_only}


def _clock_by_ptp() -> Snapshot:
    unsynchronised = _failing("clock-of-node-not-synchronised")
    services = {f"/sys/fs/cgroup/system.slice/{name}.service/cgroup.procs": "1" for name in ("phc2sys", "ptp4l")}
    return load("healthy", files={**unsynchronised["files"], **services}, intent={"nodes": 2})


HOSTS_BY_RULE: dict[str, list[Any]] = {
    # The firmware asks the GPU for what it does not support, once, when it looks for devices.
    "pcie-errors-uncorrectable": [
        lambda: load("healthy", files={f"{_GPU}aer_dev_nonfatal": "UnsupReq 1\nTOTAL_ERR_NONFATAL 1\n"})
    ],
    "pcie-errors-correctable": [lambda: load("healthy", files={f"{_GPU}aer_dev_correctable": "RxErr 3\nTOTAL_ERR_COR 3\n"})],
    # systemd's default: a third of what the machine may have.
    "cgroup-pids-limit": [
        lambda: load(
            "base-single-gpu",
            files={
                "/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope\n",
                f"{_SLICE}pids.max": "10813\n",
                f"{_SLICE}pids.current": "900\n",
                f"{_SLICE}cgroup.procs": "",
                f"{_SLICE}session-2.scope/cgroup.procs": "1\n",
            },
        )
    ],
    "cpu-governor-powersave": [
        lambda: load(
            "healthy",
            files=_frequency(
                {
                    "scaling_driver": "amd-pstate-epp\n",
                    "scaling_governor": "powersave\n",
                    "energy_performance_preference": "balance_performance\n",
                }
            ),
        ),
        lambda: load("healthy", files=_frequency({"scaling_driver": "cppc_cpufreq\n", "scaling_governor": "schedutil\n"})),
    ],
    # Boost is off in the firmware.
    "cpu-frequency-capped": [
        lambda: load("healthy", files=_frequency({"scaling_max_freq": "2400000\n", "cpuinfo_max_freq": "2400000\n"}))
    ],
    "cuda-stub-library-loaded": [
        lambda: load(
            "healthy",
            env={"LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu:/usr/local/cuda/lib64/stubs"},
            links={f"{_STUBS}.1": "libcuda.so"},
            files={_STUBS: "ELF"},
        )
    ],
    "driver-not-built-for-next-boot": [
        # Ubuntu's signed modules, without DKMS.
        lambda: load(
            "healthy",
            files={
                "/boot/vmlinuz-6.8.0-100-generic": "",
                "/lib/modules/6.8.0-100-generic/modules.dep": "kernel/nvidia-580-open/nvidia.ko: \n",
            },
        ),
        lambda: load("healthy", files={"/boot/vmlinuz-0-rescue-0123456789abcdef0123456789abcdef": ""}),
    ],
    "file-server-not-responding": [
        lambda: _logged("[1209000.1] nfs: server 10.0.0.40 not responding, still trying", "[1209060.1] nfs: server 10.0.0.40 OK")
    ],
    "gpu-pages-retired": [lambda: _gpus("Tesla V100-SXM2-32GB", pages_retired_single_bit=0, pages_retired_double_bit=2)],
    "nvlink-inactive": [lambda: _gpus("NVIDIA RTX A6000", 2, nvlinks=4, nvlinks_down=[0, 1, 2, 3])],  # no bridge is plugged in
    "kernel-crash-dump-found": [
        lambda: load("healthy", files={"/var/crash/_usr_bin_python3.12.1000.crash": "ProblemType: Crash\n"})
    ],  # apport's, of a program
    "kernel-crash-logged": [
        lambda: _logged(
            "[1209000.0] ------------[ cut here ]------------",
            "[1209000.0] WARNING: CPU: 3 PID: 1234 at drivers/gpu/drm/amd/amdgpu/../display/dc/dcn30/dcn30_hubbub.c:124 hubbub3_force_wm+0x1f/0x40 [amdgpu]",
            "[1209000.0] ---[ end trace 0000000000000000 ]---",
        )
    ],
    "critical-temperature-logged": [lambda: _logged("[1209000.0] thermald[901]: thermal_zone0 critical trip point at 105 C")],
    # A proprietary module, built elsewhere, unsigned; and a warning.
    "kernel-tainted-by-fault": [lambda: _taint(0, 9, 12, 13)],
    "memory-errors-counted": [lambda: load("healthy", files={"/sys/devices/system/edac/mc/mc1/ce_count": "1\n"})],
    "nproc-limit-too-low": [
        lambda: asked(
            load("healthy", answers={"rlimits": _failing("nproc-limit-too-low")["answers"]["rlimits"] | {"nproc": [4096, 4096]}}),
            ranks=1,
        )
    ],
    "rp-filter-strict": [
        lambda: load("healthy", files={"/proc/sys/net/ipv4/conf/all/rp_filter": "1\n"}, answers=_interfaces("lo", "eno1"))
    ],
    "network-interface-shaped": [lambda: load("healthy", intent={"nodes": 2}, answers=_interfaces(qdisc="fq"))],
    "clock-of-node-not-synchronised": [_clock_by_ptp],
    "disk-full": [
        lambda: load("healthy", spaces={"/": _full()}),  # composefs, erofs, squashfs
        lambda: load("healthy", spaces={"/usr": _full(), "/": _full(size=4 << 30)}),
    ],
    "inodes-exhausted": [
        lambda: load("healthy", spaces={"/data/train": _full(size=1 << 40, free=1 << 39, read_only=False)})
    ],  # btrfs counts none
    "container-uid-without-passwd": [
        lambda: load(
            "healthy",
            env={"USER": "train", "LOGNAME": "train"},
            answers={"uid": {"uid": 1000650000, "gid": 0, "groups": [0], "user": None}},
        )
    ],
    "container-without-gpu-devices": [
        lambda: load(
            "base-gpu-container",
            stats=_failing("container-without-gpu-devices")["stats"],
            env={"NVIDIA_VISIBLE_DEVICES": "void"},
        )
    ],
    "dev-shm-too-small": [
        lambda: asked(load("healthy", spaces=_failing("dev-shm-too-small")["spaces"]), ranks=1, workers=0),
    ],
    "image-contains-driver-libraries": [
        lambda: load("base-gpu-container", stats={"/usr/local/nvidia/lib64/libcuda.so.580.95.05": _BINARY}),
        lambda: load("base-gpu-container", stats={"/.singularity.d/libs/libcuda.so.1": _BINARY}),
    ],
    "localhost-not-loopback": [lambda: load("healthy", files={"/etc/hosts": "10.0.0.11 node-1\n"})],  # nss-myhostname answers
}


@pytest.mark.parametrize(
    ("rule_id", "number"), [(rule_id, number) for rule_id, made in HOSTS_BY_RULE.items() for number in range(len(made))]
)
def test_no_fault_is_seen(rule_id: str, number: int) -> None:
    found = result(HOSTS_BY_RULE[rule_id][number](), rule_id)
    assert found.verdict is not Verdict.FAIL, found.evidence
    assert found.verdict is not Verdict.CRASHED
