"""The user-space side of the NVIDIA driver: libraries where the loader looks for them, and device nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host, Stat
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.driver import DeviceNode
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why, fact, known, need

_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
DEFAULT_DIRECTORIES = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
"""Those of Debian's and of Red Hat's glibc; a directory of the other kind is not there, or holds files of another machine."""
WSL_LIBRARIES = "/usr/lib/wsl/lib"
MODULE_ENDS = ("", ".zst", ".xz", ".gz")
"""Behind a module's name, by the compression that the kernel was built with."""


class Libraries(msgspec.Struct, frozen=True, kw_only=True):
    version: Fact[str]
    versions: Fact[tuple[str, ...]]
    empty: Fact[tuple[str, ...]]
    libcuda: Fact[tuple[str, ...]]
    apart: tuple[str, ...]


_OF_32_BITS = pattern(r"/(?:i[3-6]86-linux-gnu|lib32|arm-linux-gnueabihf)\b")


def read_libraries(host: Host) -> Libraries:
    """Look where the loader does: LD_LIBRARY_PATH, the directories of ld.so.conf.d (which ld.so.cache is made of), the default ones."""
    first, versions, empty, libcuda = "", [], [], []
    unseen: Missing | None = None
    apart: tuple[str, ...] = ()
    narrow = _narrow(host)
    for directory in search_path(host):
        if _OF_32_BITS.search(directory) or directory in narrow:
            continue  # which a 64-bit program passes over (ld.so(8)): they may be of another release
        names = host.names(directory)
        if isinstance(names, Missing):
            if names.why is not Why.ABSENT and unseen is None:
                unseen = names
            continue
        if "libcuda.so.1" in names and host.exists(f"{directory}/libcuda.so.1") is not False:
            libcuda.append(f"{directory}/libcuda.so.1")
            if len(libcuda) == 1:
                apart = _apart(*(_led_to(host, directory, library, names) for library in _LIBRARIES))
        numbered = [name for name in names if _version(name) and not _is_compat(host, f"{directory}/{name}")]
        versions += [_version(name) for name in numbered]
        empty += [f"{directory}/{name}" for name in numbered if _size(host, f"{directory}/{name}") == 0]
        if not first:
            first = _first(host, directory, names)
            versions += [first] if first else []
    first = first or next(filter(None, (_first(host, place, _names(host, place)) for place in _OF_CONTAINER)), "")
    nothing = Missing(Why.ABSENT, "libcuda.so.1", "no NVIDIA driver library where the loader looks") if unseen is None else unseen
    seen = bool(versions or libcuda)
    return Libraries(
        version=first or nothing,
        versions=tuple(sorted(set(versions))) if seen or unseen is None else unseen,
        empty=tuple(empty) if seen or unseen is None else unseen,
        libcuda=tuple(libcuda) if libcuda or unseen is None else unseen,
        apart=apart,
    )


def _narrow(host: Host) -> tuple[str, ...]:
    """Return the directories that hold libraries of 32 bits where those of 64 bits have their own: Red Hat's, SUSE's and Gentoo's have libc.so.6 in /usr/lib64,
    Debian's its loader alone, and Arch's is a link to /usr/lib."""
    apart = host.real("/usr/lib64") == "/usr/lib64" and "libc.so.6" in _names(host, "/usr/lib64")
    return ("/lib", "/usr/lib") if apart else ()


def _apart(cuda: str, management: str) -> tuple[str, ...]:
    return (cuda, management) if cuda and management and cuda != management else ()


DRIVER_CONTAINER = "/run/nvidia/driver"
"""The root of the container in which NVIDIA's GPU operator installs the driver of a Kubernetes node; programs of the host do not look there."""
_OF_CONTAINER = tuple(f"{DRIVER_CONTAINER}/usr/{folder}" for folder in ("lib/x86_64-linux-gnu", "lib64", "lib/aarch64-linux-gnu"))
_COMPAT = pattern(r"/(?:cuda-)?compat(?:-[\w.-]{1,20})?/")
"""The folders of cuda-compat, whose libcuda is newer than the driver on purpose (forward compatibility): NVIDIA's, and conda-forge's cuda-compat,
which an environment's lib links to."""


def _is_compat(host: Host, path: str) -> bool:
    if _COMPAT.search(path):
        return True
    real = host.real(path)
    return isinstance(real, str) and _COMPAT.search(real) is not None


def _names(host: Host, directory: str) -> tuple[str, ...]:
    return known(host.names(directory), ())


def search_path(host: Host) -> list[str]:
    """Return the directories in the loader's order, each once."""
    env = host.env()
    given = "" if isinstance(env, Missing) else env.get("LD_LIBRARY_PATH", "")
    found: dict[str, None] = {}
    for directory in (*given.split(":"), *_configured(host), *DEFAULT_DIRECTORIES):
        place = directory.rstrip("/")
        if not place.startswith("/"):
            continue
        real = host.real(place)
        # /lib is a link to /usr/lib on merged systems: one directory, listed once
        found.setdefault(place if isinstance(real, Missing) else real)
    return list(found)


def _configured(host: Host) -> list[str]:
    found: list[str] = []
    for name in known(host.names("/etc/ld.so.conf.d"), ()):
        text = host.text(f"/etc/ld.so.conf.d/{name}") if name.endswith(".conf") else ""
        found += [] if isinstance(text, Missing) else parse_ld_so_conf(text)
    return found


def parse_ld_so_conf(text: str) -> list[str]:
    """Return the directories named in a file of ld.so.conf.d.

    >>> parse_ld_so_conf("# WSL\\n/usr/lib/wsl/lib\\ninclude /etc/other/*.conf\\n")
    ['/usr/lib/wsl/lib']
    """
    lines = (line.partition("#")[0].strip() for line in text.splitlines()[:1000])
    return [line for line in lines if line.startswith("/")]


def _version(name: str) -> str:
    """
    >>> _version("libcuda.so.580.95.05"), _version("libcuda.so.1"), _version("libcudart.so.12.4.127")
    ('580.95.05', '', '')
    """
    for library in _LIBRARIES:
        rest = name.removeprefix(f"{library}.")
        parts = rest.split(".")
        if rest != name and len(parts) > 1 and None not in map(natural, parts) and int(parts[0]) < 10_000:
            return rest
    return ""


def _first(host: Host, directory: str, names: tuple[str, ...]) -> str:
    """Return the version that libcuda.so.1 (or libnvidia-ml.so.1) of this directory leads to; stubs have none. Debian's leads through /etc/alternatives."""
    return next(filter(None, (_led_to(host, directory, library, names) for library in _LIBRARIES)), "")


def _led_to(host: Host, directory: str, library: str, names: tuple[str, ...]) -> str:
    if f"{library}.1" not in names:
        return ""
    path = f"{directory}/{library}.1"
    target = host.link(path)
    if isinstance(target, Missing) or host.exists(path) is False or _is_compat(host, path):
        return ""
    real = target if _version(target.rpartition("/")[2]) else host.real(path)
    return _version(real.rpartition("/")[2]) if isinstance(real, str) else ""


def _size(host: Host, path: str) -> int:
    found = host.stat(path)
    return -1 if isinstance(found, Missing) else found.size


def wsl_on_path(host: Host) -> Fact[bool]:
    """Return whether the loader looks into WSL's own library directory, which Windows mounts and ld.wsl.conf names."""
    there = host.exists(f"{WSL_LIBRARIES}/libcuda.so.1")
    if there is not True:
        return there if isinstance(there, Missing) else Missing(Why.ABSENT, WSL_LIBRARIES, "no libcuda.so.1 from Windows")
    return WSL_LIBRARIES in search_path(host)


@fact
def wsl_without_cuda(host: Host) -> Fact[bool]:
    """Return whether Windows has a display driver of NVIDIA's, and no libcuda of it. Windows mounts its whole driver store into each guest: packages there whose
    names begin with nv may be of no GPU (nvraid.inf and nvdimm.inf are part of Windows, nvhda.inf is of sound); a display driver's holds nvlddmkm.sys."""
    there = host.exists(f"{WSL_LIBRARIES}/libcuda.so.1")
    if there is not False:
        return there if isinstance(there, Missing) else False
    packages = need(host.names(_WSL_DRIVERS))
    found = [host.exists(f"{_WSL_DRIVERS}/{name}/nvlddmkm.sys") for name in packages if re.match(r"nv\w*\.inf_", name)]
    return True if True in found else next((each for each in found if isinstance(each, Missing)), False)


_WSL_DRIVERS = "/usr/lib/wsl/drivers"


@fact
def read_nodes(host: Host) -> Fact[tuple[DeviceNode, ...]]:
    """Return the nodes in /dev that programs open to use a GPU."""
    names = need(host.names("/dev"))
    paths = [f"/dev/{name}" for name in names if is_gpu_node(name)]
    registered = host.text(_REGISTERED) if paths else ""
    nodes = [read_node(host, path, registered) for path in paths]
    return tuple(node for node in nodes if not isinstance(node, Missing))


@fact
def read_node(host: Host, path: str, registered: Fact[str] | None = None) -> Fact[DeviceNode]:
    """Return one device node, and whether this session may open it; ``registered``: what /proc/devices says, where that was read before."""
    found = need(host.stat(path))
    accessible = _accessible(host, path, found, host.ask(queries.UID))
    return DeviceNode(
        path=path,
        mode=found.mode & 0o7777,
        uid=found.uid,
        gid=found.gid,
        accessible=accessible,
        device=found.special,
        driver_device=own_device(host.text(_REGISTERED) if registered is None else registered, path),
    )


def own_device(registered: Fact[str], path: str) -> str:
    r"""Return the numbers of the device that the driver registered for a node, by /proc/devices; "" where that does not tell them.

    The major of NVIDIA's GPUs is fixed, those of nvidia-uvm and kfd are given when the module is loaded.

    >>> seen = "Character devices:\n  1 mem\n195 nvidia\n235 nvidia-uvm\n\nBlock devices:\n235 kfd\n"
    >>> [own_device(seen, f"/dev/{name}") for name in ("nvidia3", "nvidiactl", "nvidia-uvm", "kfd")]
    ['195:3', '195:255', '235:0', '']
    """
    lines = () if isinstance(registered, Missing) else registered.partition("Block devices")[0].splitlines()
    majors = {name: major for major, _, name in (line.strip().partition(" ") for line in lines)}
    name = path.rpartition("/")[2]
    if name in ("nvidia-uvm", "kfd"):
        return f"{majors[name]}:0" if name in majors else ""
    if not is_gpu_node(name):
        return ""
    return f"{_NVIDIA}:{255 if name == 'nvidiactl' else name.removeprefix('nvidia')}"


_REGISTERED, _NVIDIA = "/proc/devices", 195
"""Documentation/admin-guide/devices.txt."""


def is_gpu_node(name: str) -> bool:
    """Return whether CUDA opens the node; nvidia-caps is a directory, nvidia-modeset is for displays.

    >>> [is_gpu_node(name) for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps", "null")]
    [True, True, True, False, False, False]
    """
    return name in ("nvidiactl", "nvidia-uvm") or (name.startswith("nvidia") and natural(name[6:]) is not None)


def _accessible(host: Host, path: str, found: Stat, user: object) -> Fact[bool]:
    if isinstance(user, Missing):
        return user
    if not isinstance(user, dict):
        return Missing(Why.UNPARSED, "uid", "not an object")
    # An access list may permit what the bits do not, and SELinux refuse what they do.
    answer = host.ask(f"{queries.ACCESS}:{path}")
    if isinstance(answer, dict):
        return bool(answer.get("read") and answer.get("write"))
    return allowed(found, user)


def allowed(node: Stat, user: dict[str, object]) -> bool:
    """Return whether the permission bits let the user read and write.

    >>> allowed(Stat(mode=0o20660, uid=0, gid=44, size=0), {"uid": 1000, "gid": 1000, "groups": [44]})
    True
    """
    groups = user.get("groups")
    member = node.gid == user.get("gid") or (isinstance(groups, list) and node.gid in groups)
    if user.get("uid") == 0:
        return True
    shift = 6 if node.uid == user.get("uid") else (3 if member else 0)
    return (node.mode >> shift) & 0o6 == 0o6


@fact
def has_module(host: Host, release: str) -> Fact[bool]:
    """Return whether depmod(8) has found the driver's module among those of a kernel."""
    modules = need(host.text(f"/lib/modules/{release}/modules.dep"))
    return any(f"/nvidia.ko{end}:" in modules for end in MODULE_ENDS)


_MODPROBE = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_MOST_FILES = 100


def _modprobe_files(host: Host) -> Iterator[Fact[str]]:
    """Yield the files that modprobe reads, those first that are named for a GPU's driver: one look is the rule.

    Of files of one name that of the first folder replaces the others; where it is a link to /dev/null, none is read (modprobe.d(5)).
    """
    found: dict[str, str] = {}
    for folder in _MODPROBE:
        names = host.names(folder)
        if isinstance(names, Missing):
            if names.why is not Why.ABSENT:
                yield names
            continue
        for name in [name for name in names if name.endswith(".conf")][:_MOST_FILES]:
            found.setdefault(name, f"{folder}/{name}")
    named = sorted(found.values(), key=lambda path: not any(word in path for word in ("nvidia", "nouveau", "blacklist")))
    yield from (path for path in named if host.link(path) != "/dev/null")


def modprobe_file(host: Host, bars: Callable[[str], bool]) -> Fact[str]:
    """Return the first file of modprobe.d whose text ``bars`` a module from loading; ABSENT for none, why one was not read where that may be it."""
    unread = Missing(Why.ABSENT, "modprobe.d", "no file keeps the module from loading")
    for path in _modprobe_files(host):
        if isinstance(path, Missing):
            unread = path
            continue
        text = host.text(path)
        if isinstance(text, Missing):
            unread = text if text.why is not Why.ABSENT else unread
        elif bars(text):
            return path
    return unread


def bars_nvidia(text: str) -> bool:
    r"""Return whether a file of modprobe.d keeps nvidia from loading, as prime-select, bumblebee and hands do; Debian's package loads nvidia-current in
    its place.

    >>> bars_nvidia("blacklist nvidia-drm\nalias nvidia off\n"), bars_nvidia("blacklist nvidia\n"), bars_nvidia("install nvidia /bin/false\n")
    (True, True, True)
    >>> bars_nvidia("install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\nblacklist nvidiafb\noptions nvidia NVreg_Foo=1\n# blacklist nvidia\n")
    False
    """
    lines = (line.split() for line in text.splitlines()[:5000])
    return any(words[1:2] == ["nvidia"] and (words[0] == "blacklist" or words[2:3] in _NOTHING) for words in lines)


def bars_uvm(text: str) -> bool:
    r"""Return whether a file of modprobe.d makes loading nvidia_uvm do nothing. To blacklist it does not: nvidia-modprobe names the module, and a blacklist
    holds for aliases alone (modprobe.d(5)).

    >>> bars_uvm("install nvidia-uvm /bin/false\n"), bars_uvm("blacklist nvidia_uvm\noptions nvidia_uvm x=1\ninstall nvidia_uvm modprobe -i nvidia_uvm\n")
    (True, False)
    """
    lines = (line.replace("-", "_", 1).split() for line in text.splitlines()[:5000])
    return any(words[:2] == ["install", "nvidia_uvm"] and words[2:3] in _NOTHING for words in lines)


_NOTHING = (["off"], ["/bin/false"], ["/usr/bin/false"], ["/bin/true"], ["/usr/bin/true"])
"""What a line names that loads nothing: ``alias nvidia off``, ``install nvidia /bin/false``."""


def loader_finds(host: Host, name: str) -> Fact[bool]:
    """Return whether the dynamic loader finds a library (ld.so(8)), or it lies in an active conda environment, whose libraries look there."""
    env = known(host.env(), {})
    conda = env.get("CONDA_PREFIX", "")
    folders = (*env.get("LD_LIBRARY_PATH", "").split(":")[:64], f"{conda}/lib" if conda else "", *DEFAULT_DIRECTORIES)
    if any(folder.startswith("/") and host.exists(f"{folder.rstrip('/')}/{name}") is True for folder in folders):
        return True
    query = f"{queries.LOADER_CACHE}:{name}"
    answer = host.ask(query)
    if isinstance(answer, Missing):
        seen = answer.why is Why.ABSENT and (host.live or answer.detail)
        return False if seen else Missing(Why.NOT_RECORDED, query, "recorded by a release that did not ask")
    entries = answer if isinstance(answer, (list, tuple)) else ()
    return any(isinstance(entry, dict) and entry.get("name") == name for entry in entries)
