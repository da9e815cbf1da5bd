"""Builders of the hosts 456 to 477 of hosts.csv, which are odd and healthy."""

from __future__ import annotations

from hosts_082 import wsl2
from hosts_141 import slurm
from hosts_206 import _FILE, conda
from hosts_306 import _instead
from hosts_384 import _driven, rocky
from hosts_424 import _DENIED, _WR, _capped, _own_master, _slice, _thor, aws_g5, gh200
from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_log

from machines import Recording, environment, over, system, text, torch
from platforms import gaudi, intel_xpu
from platforms_contained import podman_rootless
from platforms_more import jetson_thor, kvm_guest
from platforms_owners import mig_server

HOSTS[458] = (
    lambda: _instead(torch(_driven(_slice(True), "570.172.08", "12.8"), "2.9.1+cu128", cuda="12.8"), "triton", "3.5.1"),
    kvm_guest,
)
HOSTS[467] = (lambda: _thor("3.6.0"), jetson_thor)
HOSTS[473] = (lambda: _capped(desktop(), 125, 125), desktop)
HOSTS[477] = (lambda: _own_master(0, 0), slurm)
with_log(
    474,
    desktop,
    _DENIED.format("snap.firefox.firefox", "/dev/nvidiactl", "firefox") + _WR,
    _DENIED.format("/usr/sbin/cupsd", "/etc/paperspecs", "cupsd") + 'requested_mask="r" denied_mask="r" fsuid=0 ouid=0',
)


@made(456, gh200)
def large_pages_of_grace() -> Recording:
    host = system(gh200(), kernel="6.8.0-1030-nvidia-64k")
    arguments = "BOOT_IMAGE=/boot/vmlinuz-6.8.0-1030-nvidia-64k root=/dev/nvme0n1p2 ro init_on_alloc=0 numa_balancing=disable\n"
    return over(host, files={"/proc/cmdline": arguments, "/proc/sys/kernel/numa_balancing": "0\n"})


@made(457, rocky)
def long_term_branch_on_v100() -> Recording:
    host = system(_driven(rocky(), "535.274.02", "12.2"), kernel="4.18.0-553.69.1.el8_10.x86_64")
    return torch(host, "2.5.1+cu121", cuda="12.1")


@made(459, dgx)
def branch_570() -> Recording:
    host = torch(_driven(dgx(), "570.195.03", "12.8"), "2.9.1+cu128", cuda="12.8")
    return _instead(host, "triton", "3.5.1")


@made(460, desktop)
def ostree() -> Recording:
    host = desktop()
    lines = [line.replace(" / / rw,", " /ostree/deploy/fedora / ro,") for line in text(host, "/proc/self/mountinfo")]
    lines += [
        "61 30 259:2 /var /var rw,relatime shared:61 - ext4 /dev/nvme0n1p2 rw",
        "62 30 259:2 /home /home rw,relatime shared:62 - ext4 /dev/nvme0n1p2 rw",
        "63 30 0:63 / /tmp rw,nosuid,nodev shared:63 - tmpfs tmpfs rw,size=65536000k,nr_inodes=1048576,inode64",
    ]
    spaces = {
        "/": {**host["spaces"]["/"], "read_only": True},
        "/tmp": {**host["spaces"]["/tmp"], "size": 64 << 30, "free": 63 << 30},
    }
    return over(host, files={"/proc/self/mountinfo": lines, "/run/ostree-booted": ""}, spaces=spaces)


@made(461, two_dgx)
def ipv6_alone() -> Recording:
    host = two_dgx()
    listed = []
    for number, one in enumerate(host["answers"]["interfaces"]):
        if one["name"] == "lo":
            listed.append(one)
            continue
        own = {"family": "inet6", "address": f"2001:db8:0:{number}::17", "prefix_length": 64}
        local = {"family": "inet6", "address": f"fe80::{number}", "prefix_length": 64}
        listed.append({**one, "addresses": [own, local] if one["addresses"] else []})
    first = next(one["addresses"][0]["address"] for one in listed if one["name"] != "lo" and one["addresses"])
    return over(host, answers={"interfaces": listed, "hostname-addresses": [first]})


HOSTS[462] = (lambda: podman_rootless(), podman_rootless)
with_log(
    463,
    desktop,
    "usb 1-4: USB disconnect, device number 7",
    "Bluetooth: hci0: Waiting for firmware download to complete",
    "iwlwifi 0000:04:00.0: Microcode SW error detected. Restarting 0x0.",
    "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  580.95.05",
    "nvidia-modeset: WARNING: GPU:0: Unable to read EDID for display device DP-1",
    "[drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 1",
    "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00.PEG1.PEGP._DSM.USRG], AE_ALREADY_EXISTS (20240827/dswload2-326)",
    "workqueue: blk_mq_run_work_fn hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
)


@made(464, slurm)
def job_of_slurm() -> Recording:
    host = environment(
        slurm(), TMPDIR="/tmp/slurm.812345", SLURM_CPU_BIND="quiet,mask_cpu:0xFFFFFFFF", SLURM_MEM_PER_NODE="512000"
    )
    task = next(path for path in host["files"] if path.endswith("task_0/memory.max"))
    files = {task: f"{500 << 30}\n", task.replace("memory.max", "pids.max"): "65536\n"}
    place = "/tmp/slurm.812345"
    may = {f"access:{place}": {"read": True, "write": True}}
    return over(host, files=files, dirs={place: []}, spaces={place: host["spaces"]["/tmp"]}, answers=may)


@made(465, aws_g5)
def instance_of_amazon() -> Recording:
    clock = "/sys/devices/system/clocksource/clocksource0"
    files = {f"{clock}/current_clocksource": "kvm-clock\n", f"{clock}/available_clocksource": "kvm-clock tsc acpi_pm\n"}
    return over(
        aws_g5(),
        files=files,
        dirs={"/sys/fs/cgroup/system.slice": ["chronyd.service", "sshd.service", "systemd-journald.service"]},
    )


@made(466, dgx)
def air_gapped() -> Recording:
    host = environment(
        dgx(), HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PIP_INDEX_URL="http://mirror.site/simple", HF_HOME="/opt/hf"
    )
    may = {"access:/opt/hf": {"read": True, "write": False}}
    return over(
        host, dirs={"/opt/hf": ["hub"]}, spaces={"/opt/hf": host["spaces"]["/"]}, answers=may, files={"/etc/resolv.conf": ""}
    )


@made(468, mig_server)
def one_instance_of_many() -> Recording:
    return over(environment(mig_server(), CUDA_VISIBLE_DEVICES="MIG-5c0ffee0-0000-5000-8000-00000000000a"), intent={"ranks": 1})


HOSTS[469] = (lambda: over(wsl2(), files={"/proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"}), wsl2)
with_log(
    470,
    mi300x,
    "[drm] amdgpu kernel modesetting enabled.",
    "amdgpu: Virtual CRAT table created for CPU",
    "amdgpu 0000:0c:00.0: amdgpu: Fetched VBIOS from ROM BAR",
    "amdgpu 0000:0c:00.0: amdgpu: MEM ECC is active.",
    "amdgpu 0000:0c:00.0: amdgpu: SRAM ECC is active.",
    "amdgpu 0000:0c:00.0: amdgpu: RAS: optional ras ta ucode is not available",
    "kfd kfd: amdgpu: added device 1002:74a1",
    "amdgpu 0000:0c:00.0: amdgpu: ring sdma0 uses VM inv eng 8 on hub 8",
)
with_log(
    471,
    intel_xpu,
    "xe 0000:03:00.0: [drm] Found battlemage (device ID e20b) discrete display version 14.01 stepping B0",
    "xe 0000:03:00.0: [drm] Tile0: GT0: Using GuC firmware from xe/bmg_guc_70.bin version 70.44.1",
    "xe 0000:03:00.0: [drm] Tile0: GT1: vcs1 fused off",
    "xe 0000:03:00.0: [drm] Tile0: GT1: ccs1 fused off",
    "xe 0000:03:00.0: [drm] VISIBLE VRAM: 0x0000004000000000, 0x0000000300000000",
)
with_log(
    472,
    gaudi,
    "habanalabs 0000:50:00.0: Loading secured firmware to device, may take some time...",
    "habanalabs 0000:50:00.0: preboot full version: 'Preboot version hl-gaudi2-1.18.0-fw-53.1.1-sec-9'",
    "habanalabs 0000:50:00.0: Found GAUDI2 device with 96GB DRAM",
    "habanalabs 0000:50:00.0: hwmon1: add sensors information",
    "habanalabs 0000:50:00.0: Successfully added device 0000:50:00.0 to habanalabs driver",
)
with_log(
    475,
    dgx,
    "EXT4-fs (nvme0n1p2): re-mounted 1f0b5c9e-6a0d-4a2e-9c54-3b1f6f7b2a11 r/w. Quota mode: none.",
    "BTRFS info (device nvme1n1): checking csum tree",
    "BTRFS info (device nvme1n1): first mount of filesystem 7d3c0f52-3c0a-4b43-8a35-0a1be2a1d9c2",
    "ceph: mds0 recovery completed",
    "libceph: mon0 (1)10.0.0.9:6789 session established",
    "libceph: client4711 fsid 11111111-2222-3333-4444-555555555555",
)


@made(476, conda)
def compilers_of_conda() -> Recording:
    tools = [f"/opt/conda/bin/x86_64-conda-linux-gnu-{name}" for name in ("cc", "c++", "gcc", "g++")]
    host = environment(conda(), CC=tools[0], CXX=tools[1], CUDA_HOME="/opt/conda", CONDA_PREFIX="/opt/conda")
    files = {**dict.fromkeys(tools, ""), "/opt/conda/bin/nvcc": ""}
    return over(host, files=files, stats={path: {**_FILE, "mode": 33261} for path in files})
