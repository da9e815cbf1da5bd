"""What a recording may still tell of people and machines (nothing), and what it must (all that rules look at)."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import HOSTS, judge
from torchtune_sys import engine
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.host.recording.pseudonym import pseudonymise
from torchtune_sys.host.recording.recorder import RecordingHost
from torchtune_sys.host.recording.tokens import Tokens
from torchtune_sys.model.facts.session import Workload

CLEAR: dict[str, Any] = {
    "schema": "torchtune-sys/recording/1",
    "complete": False,
    "origin": "root /home/bilbo/image",
    "files": {
        "/proc/sys/kernel/hostname": "gandalf\n",
        "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 gandalf.middle-earth.example gandalf\n10.1.2.3 frodo\n192.168.7.9 samwise\n",
        "/etc/os-release": "ID=ubuntu\nVERSION_ID=24.04\n",
        "/proc/mounts": [
            "nfs01.corp.example:/export/home /home nfs4 rw,addr=10.1.2.200,clientaddr=10.1.2.3 0 0",
            "//10.9.9.9/share /mnt/x cifs rw,username=pippin,password=hunter2 0 0",
            "merry@rohan.example:/d /mnt/s fuse.sshfs rw 0 0",
            "/dev/nvme0n1 /scratch/bilbo xfs rw 0 0",
        ],
        "/proc/net/route": (
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
            "eth0\t00000000\t0102010A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
            "eth0\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
        ),
        "/proc/net/if_inet6": "fe80000000000000a2369ffffe123456 02 40 20 80 eth0\n20010db8000100020000000000000007 02 40 00 80 eth0\n",
        "/proc/self/cgroup": f"0::/docker/{'4f1e8f8f8a1e8f8b' * 4}\n",
        "/proc/cmdline": "root=UUID=0a1b2c3d-1111-2222-3333-444455556666 ro token=abc123 inst.ks=http://joe:sesame@10.1.2.3/ks",
        "/sys/class/infiniband/mlx5_0/node_desc": "gandalf HCA-1\n",
        "/sys/class/infiniband/mlx5_0/node_guid": "e41d:2d03:00f2:9a41\n",
        "/sys/class/infiniband/mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:e41d:2d03:00f2:9a41\n",
        "/sys/class/infiniband/mlx5_0/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a01:0203\n",
        "/sys/class/infiniband/mlx5_0/ports/1/gids/4": "0000:0000:0000:0000:0000:0000:0000:0000\n",
        "/sys/class/net/eth0/address": "a0:36:9f:12:34:56\n",
        "/sys/class/block/sda/device/wwid": "naa.5000c500a1b2c3d4\n",
        "/sys/class/block/nvme0n1/device/serial": "S64DNX0R123456\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "/etc/machine-id": "0123456789abcdef0123456789abcdee\n",
        "/home/bilbo/.nccl.conf": "NCCL_SOCKET_IFNAME=eth0\n",
    },
    "links": {"/dev/disk/by-id/nvme-SAMSUNG_S64DNX0R123456": "../../nvme0n1"},
    "dirs": {"/home": ["bilbo", "lobelia"], "/dev/disk/by-id": ["nvme-SAMSUNG_S64DNX0R123456"]},
    "env": {
        "HOME": "/home/bilbo",
        "USER": "bilbo",
        "CUDA_VISIBLE_DEVICES": "GPU-0a1b2c3d,1",
        "LD_LIBRARY_PATH": "/home/bilbo/cudnn/8.9.7.29/lib:/opt/nccl-2.18.3.1:/lustre/lobelia/lib",
        "MASTER_ADDR": "10.1.2.3",
        "HF_TOKEN": "hf_abcdefabcdefabcdef",
        "SLURM_JOB_NODELIST": "shire[01-08]",
        "NCCL_SOCKET_IFNAME": "eth0",
    },
    "answers": {
        "interpreter:/home/bilbo/v/bin/python": {
            "packages": [{"name": "nvidia-cublas-cu12", "version": "12.1.3.1", "location": "/home/bilbo/v/lib"}],
        },
        "nvml": {
            "devices": [{"uuid": "GPU-0a1b2c3d-1111-2222-3333-444455556666", "serial": "1654922003411", "pci": "0000:1b:00.0"}]
        },
        "uname": {"nodename": "gandalf", "release": "6.8.0-45-generic"},
        "interfaces": [
            {"name": "eth0", "addresses": [{"family": "inet", "address": "10.1.2.3", "prefix_length": 16}]},
            {"name": "lo", "addresses": [{"family": "inet", "address": "127.0.0.1", "prefix_length": 8}]},
        ],
        "uid": {"user": "bilbo", "uid": 1000, "home": "/home/bilbo"},
    },
    "intent": {"data": ["/scratch/bilbo/imagenet"]},
}
SECRETS = [
    "gandalf",
    "middle-earth",
    "frodo",
    "samwise",
    "nfs01",
    "corp",
    "pippin",
    "merry",
    "rohan",
    "hunter2",
    "bilbo",
    "lobelia",
    "abc123",
    "sesame",
    "hf_abc",
    "shire",
    "10.1.2.3",
    "10.1.2.200",
    "10.9.9.9",
    "192.168.7.9",
    "0102010A",
    "0000010A",
    "a2369ffffe123456",
    "20010db800010002",
    "4f1e8f8f8a1e8f8b",
    "0a1b2c3d",
    "444455556666",
    "e41d:2d03",
    "0a01:0203",
    "a0:36:9f",
    "12:34:56",
    "5000c500a1b2c3d4",
    "S64DNX0R123456",
    "1654922003411",
    "0123456789abcdef",
]


@pytest.mark.parametrize("salt", ["one", "two", "three", None])
def test_nothing_that_names_somebody_is_left(salt: str | None) -> None:
    text = json.dumps(pseudonymise(CLEAR, salt))
    assert [word for word in SECRETS if word in text] == []


def test_what_rules_look_at_is_left() -> None:
    found = pseudonymise(CLEAR, "salt")
    text = json.dumps(found)
    for word in (
        "eth0",
        "0000:1b:00.0",
        "6.8.0-45-generic",
        '"12.1.3.1"',
        "/8.9.7.29/lib",
        "nccl-2.18.3.1",
        "127.0.1.1",
        "ID=ubuntu",
        "performance",
    ):
        assert word in text
    assert (
        found["files"]["/sys/class/infiniband/mlx5_0/ports/1/gids/4"]
        == CLEAR["files"]["/sys/class/infiniband/mlx5_0/ports/1/gids/4"]
    )
    assert found["files"]["/proc/self/cgroup"].startswith("0::/docker/")


def test_equal_values_get_equal_tokens() -> None:
    found = pseudonymise(CLEAR, "salt")
    host = found["answers"]["uname"]["nodename"]
    assert found["files"]["/proc/sys/kernel/hostname"].strip() == host
    assert host in found["files"]["/etc/hosts"].split()
    assert f"{found['env']['HOME']}/.nccl.conf" in found["files"]
    assert f"interpreter:{found['env']['HOME']}/v/bin/python" in found["answers"]
    assert found["answers"]["nvml"]["devices"][0]["uuid"].startswith(found["env"]["CUDA_VISIBLE_DEVICES"].partition(",")[0])
    (listed,) = found["dirs"]["/dev/disk/by-id"]
    assert f"/dev/disk/by-id/{listed}" in found["links"]
    assert found["files"]["/sys/class/infiniband/mlx5_0/ports/1/gids/0"].endswith(
        found["files"]["/sys/class/infiniband/mlx5_0/node_guid"]
    )
    mapped = ipaddress.IPv4Address(found["env"]["MASTER_ADDR"])
    gid = found["files"]["/sys/class/infiniband/mlx5_0/ports/1/gids/3"].strip()
    assert ipaddress.IPv6Address(gid).ipv4_mapped == mapped
    destination, mask = (
        bytes.fromhex(found["files"]["/proc/net/route"].splitlines()[2].split("\t")[cell])[::-1] for cell in (1, 7)
    )
    network = ipaddress.IPv4Network((int.from_bytes(destination, "big"), str(ipaddress.IPv4Address(mask))))
    assert mapped in network


def test_versions_are_no_addresses() -> None:
    texts = {
        "/data/v/lib/python3.12/site-packages/torch-2.11.0.dist-info/METADATA": "Requires-Dist: nvidia-cublas==13.1.0.3.*\nVersion: 12.1.3.1\n",
        "/usr/local/cuda/version.json": '{"cuda": {"version": "12.4.1.0"}}',
        "/etc/x": "cudnn >= 9.1.0.70, nccl==2.18.3.1, release 10.2.3.4, V11.8.0.1, libx-1.2.3.4-5, lib.so.9.1.0.70",
    }
    assert pseudonymise({"files": texts}, "salt")["files"] == texts


def test_a_name_of_two_letters_is_replaced_where_only_a_name_can_stand() -> None:
    clear = {
        "files": {
            "/proc/sys/kernel/hostname": "vm\n",
            "/proc/sys/vm/swappiness": "60\n",
            "/etc/sysctl.conf": "vm.swappiness = 10\n",
            "/home/ed/x": "",
        },
        "answers": {"uname": {"nodename": "vm"}, "uid": {"user": "ed", "uid": 7}},
        "env": {"USER": "ed", "HOME": "/home/ed"},
    }
    found = pseudonymise(clear, "salt")
    host, user = found["answers"]["uname"]["nodename"], found["answers"]["uid"]["user"]
    assert host.startswith("host-") and user.startswith("user-")
    assert found["files"] == {
        "/proc/sys/kernel/hostname": f"{host}\n",
        "/proc/sys/vm/swappiness": "60\n",
        "/etc/sysctl.conf": "vm.swappiness = 10\n",
        f"/home/{user}/x": "",
    }
    assert found["env"] == {"USER": user, "HOME": f"/home/{user}"}


def test_two_salts_cannot_be_joined_and_one_salt_can() -> None:
    assert pseudonymise(CLEAR, "a") == pseudonymise(CLEAR, "a")
    assert pseudonymise(CLEAR, "a")["answers"]["uname"] != pseudonymise(CLEAR, "b")["answers"]["uname"]
    assert pseudonymise(CLEAR)["answers"]["uname"] != pseudonymise(CLEAR)["answers"]["uname"]


ipv4 = st.integers(0, (1 << 32) - 1)


def _class(number: int) -> tuple[bool, ...]:
    address = ipaddress.IPv4Address(number)
    return (
        address.is_private,
        address.is_loopback,
        address.is_link_local,
        address.is_multicast,
        address.is_unspecified,
        address.is_global,
    )


@pytest.mark.parametrize(
    "address",
    [
        "192.0.2.2",
        "192.0.0.8",
        "198.51.100.7",
        "203.0.113.9",
        "192.168.3.4",
        "172.31.1.2",
        "172.32.1.2",
        "100.64.1.1",
        "169.254.3.4",
    ],
)
def test_special_networks_stay_what_they_are(address: str) -> None:
    for salt in "abcdefgh":
        mapped = Tokens(salt).ipv4(address)
        assert mapped != address and _class(int(ipaddress.IPv4Address(mapped))) == _class(int(ipaddress.IPv4Address(address)))


@given(ipv4, st.integers(0, 32), ipv4, st.text(max_size=3))
def test_ipv4_keeps_class_and_common_prefix(number: int, length: int, other: int, salt: str) -> None:
    tokens = Tokens(salt)
    host_bits = (1 << (32 - length)) - 1
    neighbour = number & ~host_bits | other & host_bits
    one, two = (int(ipaddress.IPv4Address(tokens.ipv4(str(ipaddress.IPv4Address(item))))) for item in (number, neighbour))
    assert (32 - (one ^ two).bit_length()) == (32 - (number ^ neighbour).bit_length())
    first = ipaddress.IPv4Address(number)
    if not first.is_reserved and first not in ipaddress.IPv4Network("198.18.0.0/15"):
        assert _class(one) == _class(number)


@given(st.integers(0, (1 << 128) - 1), st.integers(0, 128), st.integers(0, (1 << 128) - 1))
def test_ipv6_keeps_class_and_common_prefix(number: int, length: int, other: int) -> None:
    tokens = Tokens("salt")
    host_bits = (1 << (128 - length)) - 1
    neighbour = number & ~host_bits | other & host_bits
    one, two = tokens.ipv6_number(number), tokens.ipv6_number(neighbour)
    before, after = ipaddress.IPv6Address(number), ipaddress.IPv6Address(one)
    assert (before.is_link_local, before.is_multicast, before.is_loopback) == (
        after.is_link_local,
        after.is_multicast,
        after.is_loopback,
    )
    if number >> 121 == neighbour >> 121 == 0x7E or (before.is_link_local and neighbour >> 64 == number >> 64):
        assert (one ^ two).bit_length() == (number ^ neighbour).bit_length()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda item: st.lists(item) | st.dictionaries(st.text(), item)
    )
)
def test_any_data_survives(value: Any) -> None:
    pseudonymise(
        {"files": {"/etc/x": value if isinstance(value, str) else "x"}, "answers": {"nvml": value, "interfaces": value}}, "s"
    )


@pytest.mark.parametrize("origin", ["this machine", "healthy"])
def test_a_recording_is_judged_as_its_host(origin: str) -> None:
    if origin == "healthy":
        recording = load_recording(str(HOSTS / "healthy.json"))
        inner: Any = RecordedHost(recording, "healthy")
        intent = Workload(**recording.get("intent", {}))
    else:
        inner, intent = LiveHost(), Workload()
    host = RecordingHost(inner)
    live = {rule_id: result.verdict for rule_id, result in judge(engine.snapshot(host, intent, timeout_s=60)).items()}
    clear = host.to_recording(intent)
    for kept in (clear, pseudonymise(clear, "salt")):
        again = json.loads(json.dumps(kept))
        seen = engine.snapshot(RecordedHost(again, "again"), Workload(**again.get("intent", {})), timeout_s=60)
        replayed = judge(seen)
        assert {
            rule_id: (result.verdict, result.evidence) for rule_id, result in replayed.items() if result.verdict != live[rule_id]
        } == {}


@pytest.mark.parametrize("as_lines", [True, False])
def test_of_slurm_conf_only_settings_are_left(as_lines: bool) -> None:
    path = "/etc/slurm/slurm.conf"
    lines = ["# of Mordor", "ClusterName=mordor", "NodeName=orc[01-99] CPUs=64", "PropagateResourceLimitsExcept=MEMLOCK"]
    found = pseudonymise({"files": {path: lines if as_lines else "\n".join(lines)}, "links": {"/x/slurm.conf": "other"}}, None)
    assert found["files"][path] == ["PropagateResourceLimitsExcept=MEMLOCK"]
    assert found["links"] == {"/x/slurm.conf": "other"}
    assert pseudonymise({"files": {path: {"error": "denied"}}}, None)["files"][path] == {"error": "denied"}
