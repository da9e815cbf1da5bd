"""Whole hosts put together from parts: a recorded host of ``tests/hosts/typical``, with other processors, GPUs or walls around it.

Each part takes a recording and gives a new one; what it replaces is cut out first, so that nothing of the old machine stays.
"""

from __future__ import annotations

import re
from typing import Any

from conftest import HOSTS
from torchtune_sys.host.recorded import load_recording, merged

Recording = dict[str, Any]

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
PCI = "/sys/bus/pci/devices"
_PATHS = ("files", "links", "dirs", "stats", "spaces")


def ordinary(name: str) -> Recording:
    return load_recording(str(HOSTS / "typical" / f"{name}.json"))


def over(host: Recording, **sections: Any) -> Recording:
    return merged(host, sections)


def cut(host: Recording, *prefixes: str) -> Recording:
    """Without everything that lies at or below a path that begins so."""
    return {
        **host,
        **{
            section: {path: value for path, value in host.get(section, {}).items() if not path.startswith(prefixes)}
            for section in _PATHS
        },
    }


def numbers(text: str) -> list[int]:
    """
    >>> numbers("0-2,5")
    [0, 1, 2, 5]
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def text(host: Recording, path: str) -> list[str]:
    content = host["files"][path]
    return content.splitlines() if isinstance(content, str) else list(content)


def system(
    host: Recording, *, name: str = "", kernel: str = "", machine: str = "", os_: dict[str, str] | None = None
) -> Recording:
    """Hostname, kernel release, architecture, os-release."""
    uname = dict(host["answers"]["uname"])
    files: Recording = {}
    if kernel:
        uname["release"] = kernel
        files |= {"/proc/sys/kernel/osrelease": f"{kernel}\n", "/proc/version": f"Linux version {kernel} (x) (gcc) #1 SMP\n"}
    if name:
        uname["nodename"] = name
        files |= {"/proc/sys/kernel/hostname": f"{name}\n", "/etc/hostname": f"{name}\n"}
    if machine:
        uname["machine"] = machine
    if os_:
        files["/etc/os-release"] = [f'{key}="{value}"' for key, value in os_.items()]
    return over(host, files=files, answers={"uname": uname})


def made_by(host: Recording, vendor: str, product: str, bios: str) -> Recording:
    values = {"sys_vendor": vendor, "product_name": product, "bios_vendor": bios}
    return over(host, files={f"/sys/class/dmi/id/{key}": f"{value}\n" for key, value in values.items()})


def cpus(
    host: Recording,
    *,
    packages: list[str],
    info: list[list[str]],
    threads: list[str] | None = None,
    governor: str = "performance",
    driver: str = "",
) -> Recording:
    """``packages``: CPUs of each socket. ``info``: one block of /proc/cpuinfo per kind of core. ``threads``: the sets of
    siblings where a core has more than one."""
    host = cut(host, CPUS, "/proc/cpuinfo")
    everything = sorted(number for package in packages for number in numbers(package))
    span = f"0-{everything[-1]}\n"
    siblings = {number: group for group in threads or () for number in numbers(group)}
    smt = "1" if threads else "0"
    files: Recording = {
        **{f"{CPUS}/{name}": span for name in ("online", "present", "possible")},
        f"{CPUS}/offline": "\n",
        f"{CPUS}/smt/active": f"{smt}\n",
        f"{CPUS}/smt/control": "on\n" if threads else "notsupported\n",
        "/proc/cpuinfo": [line for number, block in enumerate(info) for line in (f"processor\t: {number}", *block, "")],
        "/sys/fs/cgroup/cpuset.cpus.effective": span,
    }
    for package in packages:
        for number in numbers(package):
            files[f"{CPUS}/cpu{number}/topology/core_cpus_list"] = f"{siblings.get(number, number)}\n"
            files[f"{CPUS}/cpu{number}/topology/package_cpus_list"] = f"{package}\n"
    if driver:
        for number in everything:
            policy = f"{CPUS}/cpufreq/policy{number}"
            files |= {
                f"{policy}/scaling_driver": f"{driver}\n",
                f"{policy}/scaling_governor": f"{governor}\n",
                f"{policy}/affected_cpus": f"{number}\n",
                f"{policy}/scaling_max_freq": "3000000\n",
                f"{policy}/cpuinfo_max_freq": "3000000\n",
            }
    host = over(host, files=files, answers={"affinity": span.strip()})
    return status(host, Cpus_allowed_list=span.strip())


def status(host: Recording, **fields: str) -> Recording:
    """Fields of /proc/self/status."""
    kept = [line for line in text(host, "/proc/self/status") if line.partition(":")[0] not in fields]
    return over(host, files={"/proc/self/status": [*kept, *(f"{name}:\t{value}" for name, value in fields.items())]})


def nodes(host: Recording, rows: dict[int, tuple[str, int]], distances: list[list[int]] | None = None) -> Recording:
    """``rows``: node → CPUs and KiB. Without ``distances`` 10 on the diagonal and 20 elsewhere."""
    host = cut(host, NODES)
    ids = sorted(rows)
    listed = ",".join(str(node) for node in ids)
    files: Recording = {
        f"{NODES}/online": f"{listed}\n",
        f"{NODES}/possible": f"{listed}\n",
        f"{NODES}/has_cpu": ",".join(str(node) for node in ids if rows[node][0]) + "\n",
        f"{NODES}/has_memory": ",".join(str(node) for node in ids if rows[node][1]) + "\n",
        f"{NODES}/has_normal_memory": ",".join(str(node) for node in ids if rows[node][1]) + "\n",
        "/sys/fs/cgroup/cpuset.mems.effective": f"{listed}\n",
    }
    for place, node in enumerate(ids):
        held, kib = rows[node]
        row = distances[place] if distances else [10 if other == node else 20 for other in ids]
        files[f"{NODES}/node{node}/cpulist"] = f"{held}\n"
        files[f"{NODES}/node{node}/distance"] = " ".join(map(str, row)) + "\n"
        files[f"{NODES}/node{node}/meminfo"] = [f"Node {node} MemTotal: {kib} kB", f"Node {node} MemFree: {kib // 2} kB"]
    return status(memory(over(host, files=files), sum(kib for _, kib in rows.values())), Mems_allowed_list=listed)


def memory(host: Recording, kib: int) -> Recording:
    lines = [line for line in text(host, "/proc/meminfo") if line.split(":")[0] not in ("MemTotal", "MemFree", "MemAvailable")]
    amounts = [f"MemTotal: {kib} kB", f"MemFree: {kib // 2} kB", f"MemAvailable: {kib * 9 // 10} kB"]
    return over(host, files={"/proc/meminfo": [*amounts, *lines]})


def function(host: Recording, place: str, ids: str, class_: str, driver: str, node: int = 0, **files: str) -> Recording:
    """One PCI function. ``place``: where it lies below /sys/devices; ``ids``: vendor:device."""
    address = place.rpartition("/")[2]
    folder = f"/sys/devices/{place}"
    own = {
        "uevent": [f"DRIVER={driver}", f"PCI_CLASS={class_}", f"PCI_ID={ids.upper()}", f"PCI_SLOT_NAME={address}"],
        "vendor": f"0x{ids[:4].lower()}",
        "numa_node": str(node),
        "current_link_speed": "32.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_width": "16",
        **files,
    }
    return over(
        host,
        files={f"{folder}/{name}": value for name, value in own.items()},
        links={f"{PCI}/{address}": f"../../../devices/{place}", f"{folder}/driver": f"/sys/bus/pci/drivers/{driver}"},
    )


def moved(host: Recording, node_of: dict[str, int]) -> Recording:
    """PCI functions at other NUMA nodes, by the first bytes of their bus."""
    files = {}
    for path in host["files"]:
        bus = path.rpartition("/")[0][-7:-5]
        if path.endswith("/numa_node") and bus in node_of:
            files[path] = f"{node_of[bus]}\n"
    return over(host, files=files)


def without_gpus(host: Recording) -> Recording:
    """No NVIDIA GPU and no driver of one."""
    gone = [
        path.rpartition("/")[0] for path, value in host["files"].items() if path.endswith("/vendor") and value.strip() == "0x10de"
    ]
    links = {
        path: target
        for path, target in host["links"].items()
        if not target.endswith(tuple(place[4:] for place in gone) or ("\0",))
    }
    host = cut({**host, "links": links}, *gone, "/proc/driver/nvidia", "/sys/module/nvidia", "/run/nvidia-", "/dev/nvidia")
    names = ("libcuda.so", "libnvidia-ml.so")
    stats = {path: value for path, value in host["stats"].items() if not path.rpartition("/")[2].startswith(names)}
    links = {path: value for path, value in host["links"].items() if not path.rpartition("/")[2].startswith(names)}
    modules = (
        [line for line in text(host, "/proc/modules") if not line.startswith("nvidia")]
        if "/proc/modules" in host["files"]
        else []
    )
    answers = {name: value for name, value in host["answers"].items() if name != "nvml"}
    return over({**host, "stats": stats, "links": links, "answers": answers}, files={"/proc/modules": "\n".join(modules) + "\n"})


H100_SXM: Recording = {
    "name": "NVIDIA H100 80GB HBM3",
    "architecture": "Hopper",
    "compute_capability": [9, 0],
    "memory_total_bytes": 85_520_809_984,
    "power_limit_mw": 700_000,
    "power_default_mw": 700_000,
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "nvlinks": 18,
    "fabric_state": "completed",
    "fabric_status": "success",
    "fabric_health": [],
}
"""What NVML says of each of eight H100 in an HGX board, whose fabric manager has joined them."""


def gpus(host: Recording, places: list[str], *, ids: str, nodes_: list[int], driver: str = "", **facts: Any) -> Recording:
    """The GPUs of NVML and of the PCI bus in place of those that were there. ``places`` as in ``function``; ``facts`` of all."""
    nvml = host["answers"]["nvml"]
    model = nvml["devices"][0]
    version = driver or nvml["driver_version"]
    proc = host["files"]["/proc/driver/nvidia/version"]
    libraries = {path: value for path, value in host["links"].items() if path.endswith((".so.1",))}
    stats = {path: value for path, value in host["stats"].items() if "/dev/nvidia" in path and not path[-1].isdigit()}
    modules = host["files"].get("/proc/modules", "")
    host = over(
        without_gpus(host),
        files={"/proc/driver/nvidia/version": proc, "/sys/module/nvidia/version": version, "/proc/modules": modules},
        links=libraries,
        stats=stats,
    )
    host = with_driver(host, nvml["driver_version"], version)
    devices = []
    for index, place in enumerate(places):
        host = function(host, place, ids, "30200", "nvidia", nodes_[index])
        special = {"mode": 8630, "uid": 0, "gid": 0, "size": 0, "special": f"195:{index}"}
        host = over(host, stats={f"/dev/nvidia{index}": special})
        uuid = f"GPU-5c0ffee0-0000-4000-8000-{index:012d}"
        devices.append({**model, "index": index, "pci_address": place.rpartition("/")[2], "uuid": uuid, **facts})
    peers = "chipset-not-supported" if re.search(r"RTX [45]0\d\d", devices[0]["name"]) else "ok"
    pairs = [
        {"first": one, "second": two, "read": peers, "write": peers, "nvlink": peers}
        for one in range(len(places))
        for two in range(one + 1, len(places))
    ]
    answer = {**nvml, "driver_version": version, "library_version": f"{version.split('.')[0][:2]}.{version}"}
    return over(host, answers={"nvml": {**answer, "devices": devices, "p2p": pairs}})


def with_driver(host: Recording, before: str, version: str) -> Recording:
    """Kernel module and libraries of that version."""
    lines = [line.replace(before, version) for line in text(host, "/proc/driver/nvidia/version")]
    links = {path: value.replace(before, version) for path, value in host["links"].items() if path.endswith(".so.1")}
    stats = {
        path.rpartition("/")[0] + "/" + target: {"mode": 33188, "uid": 0, "gid": 0, "size": 95928112}
        for path, target in links.items()
        if target.endswith(version)
    }
    files = {
        "/proc/driver/nvidia/version": lines,
        "/sys/module/nvidia/version": version,
        "/run/nvidia-persistenced/nvidia-persistenced.pid": "2011",
    }
    return over(host, files=files, links=links, stats=stats)


def torch(
    host: Recording, version: str, *, cuda: str | None = None, hip: str | None = None, xpu: str | None = None, arch: str = ""
) -> Recording:
    """Another build of torch; one without CUDA comes without NVIDIA's wheels, and without the torchvision that belonged to them."""
    path = next(path for path in host["files"] if path.endswith("/torch/version.py"))
    site = path.removesuffix("/torch/version.py")
    wheel = next(value for name, value in host["files"].items() if "/torch-" in name and name.endswith("/WHEEL"))
    tag = text({"files": {"x": wheel}}, "x")
    host = cut(host, f"{site}/torch-", *(() if cuda else (f"{site}/nvidia_", f"{site}/torchvision-")))
    info = f"{site}/torch-{version}.dist-info"
    files = {
        path: [
            f"__version__ = {version!r}",
            "debug = False",
            f"cuda: Optional[str] = {cuda!r}",
            f"hip: Optional[str] = {hip!r}",
            f"xpu: Optional[str] = {xpu!r}",
        ],
        f"{info}/INSTALLER": "pip\n",
        f"{info}/METADATA": ["Metadata-Version: 2.4", "Name: torch", f"Version: {version}", "", ""],
        f"{info}/WHEEL": [line.replace("x86_64", arch) if arch else line for line in tag],
    }
    return over(host, files=files)


def interpreter(host: Recording, **facts: Any) -> Recording:
    name = next(name for name in host["answers"] if name.startswith("interpreter:"))
    return over(host, answers={name: {**host["answers"][name], **facts}})


def environment(host: Recording, **variables: str | None) -> Recording:
    return over(host, env=variables)


def card(
    host: Recording, name: str, place: str, *, ids: str, driver: str, address: str, node: int = 0, mtu: int = 1500, mbit: int = 0
) -> Recording:
    """A network card with its interface; without a speed where the driver names none."""
    host = function(host, place, ids, "20000", driver, node)
    listed = host["answers"]["interfaces"]
    number = max(one["index"] for one in listed) + 1
    owner, _, bits = address.partition("/")
    one = {
        "name": name,
        "index": number,
        "type": 1,
        "flags": 69699,
        "operstate": "up",
        "kind": "",
        "link": 0,
        "master": "",
        "mtu": mtu,
    }
    one["addresses"] = [{"family": "inet", "address": owner, "prefix_length": int(bits)}]
    speed: Any = str(mbit) if mbit else {"error": "not-supported", "detail": "Invalid argument"}
    plain = {"mtu": str(mtu), "type": "1", "flags": "0x1003", "operstate": "up", "speed": speed}
    settings = {"rp_filter": "2\n", "arp_ignore": "0\n", "arp_announce": "0\n"}
    return over(
        host,
        files={
            **{f"/sys/class/net/{name}/{key}": value for key, value in plain.items()},
            **{f"/proc/sys/net/ipv4/conf/{name}/{key}": value for key, value in settings.items()},
        },
        links={f"/sys/class/net/{name}/device": f"/sys/devices/{place}"},
        dirs={f"/sys/devices/{place}/net": [name]},
        answers={"interfaces": [*listed, one]},
    )


def without_cards(host: Recording, *kept: str) -> Recording:
    """No network card and no RDMA device, the interfaces named apart."""
    places = [
        path.rpartition("/")[0]
        for path, value in host["files"].items()
        if path.endswith("/uevent") and "PCI_CLASS=20" in str(value)
    ]
    names = [one["name"] for one in host["answers"]["interfaces"] if one["name"] not in ("lo", *kept)]
    gone = [place for place in places if not any(host["links"].get(f"/sys/class/net/{name}/device") == place for name in kept)]
    links = {
        path: target
        for path, target in host["links"].items()
        if not target.endswith(tuple(place[4:] for place in gone) or ("\0",))
    }
    folders = [f"{top}/{name}/" for name in names for top in ("/sys/class/net", "/proc/sys/net/ipv4/conf")]
    host = cut({**host, "links": links}, *gone, *folders, "/sys/class/infiniband", "/dev/infiniband")
    left = [one for one in host["answers"]["interfaces"] if one["name"] not in names]
    return over(host, answers={"interfaces": left})


def rdma(
    host: Recording, name: str, place: str, *, layer: str, rate: str, kind: str, gid: str = "", interface: str = ""
) -> Recording:
    """An RDMA device with one active port on a card that is there already."""
    folder = f"/sys/class/infiniband/{name}"
    nodes_ = host.get("dirs", {}).get("/dev/infiniband", ["rdma_cm"])
    port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": layer, "rate": rate}
    files: Recording = {f"{folder}/ports/1/{key}": value for key, value in port.items()}
    files |= {f"{folder}/fw_ver": "28.41.1000" if kind.startswith("MT") else "0.0.0.0", f"{folder}/hca_type": kind}
    if gid:
        for index, version in enumerate(("IB/RoCE v1", "RoCE v2")):
            files |= {f"{folder}/ports/1/gids/{index}": gid, f"{folder}/ports/1/gid_attrs/types/{index}": version}
            files[f"{folder}/ports/1/gid_attrs/ndevs/{index}"] = interface
    uverbs = f"uverbs{sum(one.startswith('uverbs') for one in nodes_)}"
    return over(
        host, files=files, links={f"{folder}/device": f"/sys/devices/{place}"}, dirs={"/dev/infiniband": [*nodes_, uverbs]}
    )


def arm(part: str, features: str = "fp asimd evtstrm aes atomics", implementer: str = "0x41") -> list[str]:
    return [
        "BogoMIPS\t: 50.00",
        f"Features\t: {features}",
        f"CPU implementer\t: {implementer}",
        "CPU architecture: 8",
        f"CPU part\t: {part}",
    ]


def x86(model: str, vendor: str = "GenuineIntel", flags: str = "fpu sse4_2 avx avx2 avx512f") -> list[str]:
    return [f"vendor_id\t: {vendor}", f"model name\t: {model}", f"flags\t\t: {flags}"]
