"""Names of the queries whose answers come from system calls instead of files.

Each answer is plain JSON data, so that a recording can hold it. ``host/live_queries`` maps each query to the function that answers it on
the live machine; probes name a query by its constant here.
"""

from __future__ import annotations

AFFINITY = "affinity"
"""sched_getaffinity(0) as a CPU list: ``"0-3"``."""
RLIMITS = "rlimits"
"""``{"nofile": [soft, hard], …}``; null is unlimited. Names as in limits.conf(5)."""
UID = "uid"
"""``{"uid": 0, "gid": 0, "groups": [...], "user": "root" or null, "home": "/root" or null}`` (user null: no passwd entry)."""
UNAME = "uname"
"""``{"release": …, "machine": …, "nodename": …}``"""
CWD = "cwd"
"""The working directory."""
TODAY = "today"
"""The date by the host's clock, in UTC: ``"2026-11-21"``."""
DISTRIBUTION = "distribution"
"""What the distro library makes of a host without os-release: ``{"id", "like", "version", "name", "codename"}``."""
GLIBC = "glibc"
"""confstr(CS_GNU_LIBC_VERSION), e.g. ``"2.36"``; ABSENT on musl."""
ACCESS = "access"
"""``access:PATH``: ``{"read": true, "write": false}``, access lists and root squashing included (faccessat, effective ids)."""
FIRST_FILES = "closed-files"
"""``closed-files:DIRECTORY``: of the first files there, how many this session may not read, how many were looked at, and how many are pointers of
Git LFS: ``[4, 16, 0]``."""
INTERFACES = "interfaces"
"""getifaddrs order: ``[{"name", "addresses": [{"family": "inet"|"inet6", "address", "prefix_length"}], …}]``"""
HOSTNAME_ADDRESSES = "hostname-addresses"
"""getaddrinfo(gethostname()): list of addresses, in order; ABSENT if it does not resolve."""
LOCALHOST_ADDRESSES = "localhost-addresses"
"""The same of the name localhost; an empty list if it does not resolve, since recordings of earlier releases lack the answer."""
WAY_TO = "way-to"
"""``way-to:NAME``: ``{"addresses": [...], "refused": ["Network is unreachable", ""], "own": ["", "10.0.0.5"]}``: what the name resolves to, and for each
address why the kernel has no route there, else from which of its own it would send. Nothing is sent."""
NVML = "nvml"
"""What the NVML child printed (see ``host.nvml.child``)."""
NVML_TIMEOUT_S = 20.0
"""A node with 8 GPUs and persistence mode off needs several seconds only to wake them."""
NVML_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
)
"""Where distributions, WSL, Kubernetes' device plug-ins and NixOS put the library."""
INTERPRETER = "interpreter"
"""What the child printed in the interpreter one trains with (see ``interpreter_child.py``)."""
KERNEL_LOG = "kernel-log"
"""``{"source", "lines", "now_s", "booted", "from_s", "whole"}``, only the lines that may say something; a file's or the journal's has
``first`` and ``last`` (their time stamps) instead of the numbers."""
LIVE_TORCH = "live-torch"
"""What the child printed that imported torch (see ``torch_child.py``)."""
PCI_CONFIG = "pci-config"
"""``pci-config:ADDRESS``: registers of a PCI function that only root may read (see ``answers/pci.py``)."""
RDMA_COUNTERS = "rdma-counters"
"""``{"seconds", "ports": {"mlx5_0:1": {"symbol_error": [first, second]}}}``: error counters read twice (see ``answers/rdma.py``)."""
PCI_ERRORS = "pci-errors"
"""``{"seconds": 1.0, "correctable": {"0000:1b:00.0": 12}}``: by how much the counters that moved grew (see ``answers/pci.py``)."""
SMBIOS = "smbios"
"""``{"memory_devices": [{"locator", "bank", "size_mib", "rated_mts", "configured_mts", "form"}]}`` (see ``formats/smbios.py``); no serial numbers."""
PACKAGES = "packages"
"""``[{"name", "version", "held", "origin"}]`` of dpkg, pacman or rpm, only those that matter to GPU training (see ``formats/package_records.py``)."""
SERVICES = "services"
"""``{"window_s", "units": [{"name", "cores", "wakeups_per_s", "rss_bytes", "processes"}]}``: what each unit took over a second."""
USER_TASKS = "user-tasks"
"""How many threads this session's user has on the machine, as far as this PID namespace shows them."""
DYNAMIC = "dynamic"
"""``dynamic:PATH``: ``{"kind", "soname", "needed", "rpath", "runpath", "no_default"}`` of an ELF file (``formats/elf.py``)."""
CUT_LIBRARIES = "cut-libraries"
"""``cut-libraries:DIRECTORY``: ``[["libtorch_cpu.so", 4096, 250000000]]``: ELF files there that are shorter than they must be, with both sizes."""
LOST_PARTS = "lost-parts"
"""``lost-parts:DIRECTORY``: packages within torch that each import of it needs and that are not there: ``["nn", "distributed"]``."""
MODULE_FILES = "module-files"
"""``module-files:DIRECTORY``: what lies there under the name of a module that torch imports: ``["random.py", "torch/__init__.py"]``."""
LOADER_CACHE = "loader-cache"
"""``[{"name", "path", "flags", "level"}]``: the entries of /etc/ld.so.cache for CUDA's libraries, in its order; ``loader-cache:libibverbs.so.1``: for that one."""
REFUSALS = "refusals"
"""Why this process may not have memory that is written and executed, or a netlink socket: ``{"code": "Permission denied", "netlink": ""}``; "": it may."""
MEMORY_POLICY = "memory-policy"
"""Whether this session may call set_mempolicy(2): true or false."""
PORT_LISTENERS = "port-listeners"
"""``port-listeners:29500``: the user ids of the processes that listen on the TCP port, each once (see ``answers/sockets.py``)."""
BOUND_SOCKET = "bound-socket"
"""``bound-socket:PATH``: whether a process holds the Unix socket of that path."""
