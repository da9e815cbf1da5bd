"""Anonymise a recording, so that it can be published and is still judged alike.

What goes: user and host names, home directories, addresses, hardware addresses, UUIDs, serial numbers, world-wide names,
InfiniBand GUIDs, container ids, mail addresses, passwords and access tokens. What stays, because rules look at it: names of
interfaces and devices, PCI addresses, versions, the class of an address and who shares a subnet with whom.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torchtune_sys.host import queries
from torchtune_sys.host.environment import secret
from torchtune_sys.host.recording.identities import HOST_FILES, HOST_VARIABLES, SHORT, USER_VARIABLES, Identities, identities
from torchtune_sys.host.recording.tokens import Tokens
from torchtune_sys.host.secrets.filter import scrubbed_file


def pseudonymise(recording: dict[str, Any], salt: str | None = None) -> dict[str, Any]:
    """Return the recording with tokens for whatever names a person or a machine.

    Equal values get equal tokens within one recording; two recordings can be joined only if both were given the same ``salt``
    (None: a fresh one that nobody keeps).
    """
    import secrets

    return _Rewriter(Tokens(salt or secrets.token_hex(16)), identities(recording)).recording(recording)


_USER_WRITTEN = re.compile(
    r"/(?!proc/|sys/|dev/)|/proc/(?:self/|\d+/)?(?:mounts|mountinfo|cgroup|cmdline|environ|net/)|/proc/swaps|/proc/sys/kernel/(?:host|domain)name"
    r"|/sys/fs/cgroup/|/sys/.*/(?:node_desc|ifalias|backing_file|dm/name)$"
)
"""Files whose text people wrote, or that carry names people chose; the rest of /proc and /sys is the kernel's own words."""
_NAMELESS = re.compile(r"os-release$|/[a-z]+-release$")
"""Names of distributions and versions, nothing else."""
_PACKAGE_FILE = re.compile(r"\.(?:dist|egg)-info/|/site-packages/|/dist-packages/|/version\.(?:json|txt|py)$")
_PACKAGES = (queries.INTERPRETER, queries.LIVE_TORCH, queries.NVML)
"""Answers full of version numbers, which have the form of addresses (nvidia-cublas-cu12 12.1.3.1)."""

_MAIL = re.compile(r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b")
_ID = re.compile(
    r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}(?P<dash>[-_])[0-9a-fA-F]{4}(?P=dash)[0-9a-fA-F]{4}(?P=dash)[0-9a-fA-F]{4}(?P=dash)[0-9a-fA-F]{12}(?![0-9A-Za-z])"  # UUID
    r"|(?<=GPU-)[0-9a-f]{2,}[0-9a-f-]*|(?<=MIG-)[0-9a-f]{4,}[0-9a-f-]*"  # the beginning of one, which CUDA takes for the whole
    r"|(?<=UUID=)[0-9A-F]{4}-[0-9A-F]{4}\b"  # FAT volumes
    r"|(?<![0-9A-Za-z.,])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9A-Za-z,])"  # containers, machine-id; not bit maps, which have commas
)
_MAC = re.compile(r"(?<![0-9A-Za-z:])(?:[0-9a-fA-F]{2}:){5,}[0-9a-fA-F]{2}(?![0-9A-Za-z:])")
_GUID = re.compile(r"(?<![0-9A-Za-z:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![0-9A-Za-z:])")
_GID = re.compile(r"(?<![0-9A-Za-z:])[0-9a-f]{4}(?::[0-9a-f]{4}){7}(?![0-9A-Za-z:])")
_IPV4 = re.compile(r"(?<![\w.-])(\d{1,3}(?:\.\d{1,3}){3})(?:/(\d{1,2}))?(?![\w.]*\d|[+~-](?!\d+\.\d+\.\d+\.\d)\w)")
_IPV6 = re.compile(r"(?<![\w:.-])([0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?:\.\d{1,3}){0,3})(?:/(\d{1,3}))?(?![\w:.])")
_VERSION_BEFORE = re.compile(r"(?:(?:version|release|revision|rev|v)[\s:=\"']*|(?<![/:])/|[=<>~!]=\s*|[<>]\s*)$", re.IGNORECASE)
_NODES = re.compile(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9._]|[A-Za-z]")
_BY_ID = re.compile(r"(?<=/by-id/)[^/\s]+?(?=-part\d+$|$)")
_WORLD_WIDE = re.compile(
    r"/(?:wwid|wwn|[a-z_]*guid|port_name|node_name|subsysnqn|hostnqn|eui|nguid|phys_port_id|phys_switch_id)$"
)
_HEX_RUN = re.compile(r"(?<![0-9A-Za-z])(?:0x)?[0-9a-fA-F]{8,}(?![0-9A-Za-z])")


class _Rewriter:
    def __init__(self, tokens: Tokens, known: Identities) -> None:
        self._tokens = tokens
        self._words = {name: tokens.word("host", name) for name in known.hosts}
        self._words.update((name, tokens.word("user", name)) for name in known.users)
        self._serials = {text: tokens.word("serial", text) for text in known.serials}
        self._word = _any_of([name for name in self._words if len(name) > SHORT])
        self._home = re.compile(
            rf"(?<=/home/)(?:{'|'.join(re.escape(name) for name in known.users) or '(?!)'})(?=/|$)", re.MULTILINE
        )
        self._serial = _any_of(list(self._serials))

    def recording(self, found: dict[str, Any]) -> dict[str, Any]:
        result = {name: value for name, value in found.items() if name not in _SECTIONS}
        result = {name: self._nested(value, "/") if name in ("origin", "intent") else value for name, value in result.items()}
        for section in _SECTIONS:
            if section in found:
                rewrite = getattr(self, f"_{section}", self._entries)
                result[section] = rewrite(found[section])
        return result

    def _files(self, entries: dict[str, Any]) -> dict[str, Any]:
        changed = {path: _slurm(value) if path.endswith("/slurm.conf") else value for path, value in entries.items()}
        return self._entries(changed)

    def _entries(self, entries: dict[str, Any]) -> dict[str, Any]:
        return {self._text(path, path, _kind(path)): self._nested(value, path) for path, value in entries.items()}

    def _env(self, entries: dict[str, str]) -> dict[str, str]:
        return {name: self._variable(name, str(value)) for name, value in entries.items() if not secret(name, str(value))}

    def _variable(self, name: str, value: str) -> str:
        if "NODELIST" in name or name in ("SLURM_NODE_ALIASES", "SLURM_TOPOLOGY_ADDR", "PBS_NODEFILE", "LSB_HOSTS"):
            return _NODES.sub(lambda found: self._tokens.word("host", found[0]), value)
        if name in USER_VARIABLES + HOST_VARIABLES and value in self._words:
            return self._words[value]
        return self._text(value, "", "written")

    def _commands(self, entries: dict[str, Any]) -> dict[str, Any]:
        return {self._text(argv, "", "written"): self._nested(value, "/") for argv, value in entries.items()}

    def _answers(self, entries: dict[str, Any]) -> dict[str, Any]:
        return {
            self._text(question, "", "written"): self._answer(value, question.partition(":")[0])
            for question, value in entries.items()
        }

    def _answer(self, value: Any, question: str) -> Any:
        if isinstance(value, dict):
            return {self._answer(name, question): self._answer(item, question) for name, item in value.items()}
        if isinstance(value, list):
            return [self._answer(item, question) for item in value]
        if not isinstance(value, str):
            return value
        if value in self._words and (len(value) > SHORT or question in (queries.UNAME, queries.UID)):
            return self._words[value]
        kind = "written" if question not in _PACKAGES else "names" if "/" in value else "kernel"
        return self._text(value, "", kind)

    def _nested(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {name: self._nested(item, path) for name, item in value.items()}
        if isinstance(value, list):
            if path.startswith("/dev/disk/by-id"):
                return [self._text(f"/by-id/{name}", path, "kernel").removeprefix("/by-id/") for name in value]
            return [self._nested(item, path) for item in value]
        return self._text(value, path, _kind(path)) if isinstance(value, str) else value

    def _text(self, text: str, path: str, kind: str) -> str:
        """``path``: the file that holds the text; ``kind``: what can stand in it (``written``, ``names`` or ``kernel``)."""
        if len(text) < 3:
            return text
        table = _TABLES.get(path.rpartition("/net/")[2]) if path.startswith("/proc/") and text != path else None
        if table is not None:
            return table(text, self._tokens)
        if path in HOST_FILES and text.strip() in self._words:
            return text.replace(text.strip(), self._words[text.strip()])
        if kind == "written":
            text = scrubbed_file(text, path)
            if "@" in text:
                text = _MAIL.sub(lambda found: f"{self._tokens.word('mail', found[0])}@example.invalid", text)
            text = _IPV6.sub(self._ipv6, _IPV4.sub(self._ipv4, text))
        text = self._numbers(text, path, kind)
        if kind != "kernel":
            text = self._word.sub(lambda found: self._words[found[0]], self._home.sub(lambda found: self._words[found[0]], text))
        return self._serial.sub(lambda found: self._serials[found[0]], text)

    def _numbers(self, text: str, path: str, kind: str) -> str:
        """Ids that have a form of their own, wherever they stand."""
        if kind == "kernel":
            text = _GID.sub(self._gid, text)
        text = _MAC.sub(lambda found: self._tokens.mac(found[0]), _GUID.sub(self._guid, text))
        text = _ID.sub(lambda found: self._tokens.hexadecimal(found[0]), text)
        if _WORLD_WIDE.search(path) and text != path:
            text = _HEX_RUN.sub(self._world_wide, text)
        return _BY_ID.sub(lambda found: self._tokens.word("disk", found[0]), text)

    def _world_wide(self, found: re.Match[str]) -> str:
        digits = found[0].removeprefix("0x")
        return found[0][: -len(digits)] + self._tokens.hexadecimal(digits)

    def _ipv4(self, found: re.Match[str]) -> str:
        octets = [int(octet) for octet in found[1].split(".")]
        if max(octets) > 255 or _VERSION_BEFORE.search(found.string, max(found.start() - 12, 0), found.start()):
            return found[0]
        address = self._tokens.ipv4(".".join(map(str, octets)))
        if found[2] is None:
            return address
        return f"{_masked(address, octets, int(found[2]))}/{found[2]}"

    def _ipv6(self, found: re.Match[str]) -> str:
        import ipaddress

        try:
            number = int(ipaddress.IPv6Address(found[1]))
        except ValueError:
            return found[0]
        if _MAC.fullmatch(found[1]):  # eight octets of a hardware address have the form of an address, too
            return found[0]
        mapped = self._tokens.ipv6_number(number)
        if mapped == number:
            return found[0]
        if found[2] is None:
            return str(ipaddress.IPv6Address(mapped))
        host_bits = (1 << (128 - min(int(found[2]), 128))) - 1
        return f"{ipaddress.IPv6Address(mapped if number & host_bits else mapped & ~host_bits)}/{found[2]}"

    def _gid(self, found: re.Match[str]) -> str:
        number = int(found[0].replace(":", ""), 16)
        return _grouped(self._tokens.ipv6_number(number) if number else 0, 8)

    def _guid(self, found: re.Match[str]) -> str:
        """Return the token of a GUID. A port's GUID is the end of its link-local GID, and so are their tokens."""
        number = int(found[0].replace(":", ""), 16)
        return _grouped(self._tokens.ipv6_number(0xFE80 << 112 | number) & (1 << 64) - 1 if number else 0, 4)


_SECTIONS = ("files", "links", "dirs", "stats", "spaces", "commands", "env", "answers")


def _kind(path: str) -> str:
    if _PACKAGE_FILE.search(path):
        return "names"
    return "kernel" if _NAMELESS.search(path) or (not _USER_WRITTEN.match(path) and not path.startswith("/dev/")) else "written"


def _any_of(words: list[str]) -> re.Pattern[str]:
    if not words:
        return re.compile(r"(?!)")
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9])")


def _masked(address: str, octets: list[int], length: int) -> str:
    """Return the token of an address. A network address stays one: bits behind the prefix that were zero are zero again."""
    if length > 32:
        return address
    host_bits = (1 << (32 - length)) - 1
    was = int.from_bytes(bytes(octets), "big")
    number = int.from_bytes(bytes(int(octet) for octet in address.split(".")), "big")
    if was & host_bits:
        return address
    return ".".join(str(octet) for octet in (number & ~host_bits).to_bytes(4, "big"))


def _grouped(number: int, groups: int) -> str:
    digits = f"{number:0{groups * 4}x}"
    return ":".join(digits[start : start + 4] for start in range(0, groups * 4, 4))


def _route(text: str, tokens: Tokens) -> str:
    """/proc/net/route: little-endian hexadecimal destination, gateway and mask in columns 2, 3 and 8."""
    lines = []
    for line in text.split("\n"):
        cells = line.split("\t")
        if len(cells) > 7 and re.fullmatch("[0-9A-F]{8}", cells[1]):
            mask = int(cells[7].strip(), 16)
            cells[1] = f"{_swapped_ipv4(cells[1], tokens) & mask:08X}"
            cells[2] = f"{_swapped_ipv4(cells[2], tokens):08X}"
        lines.append("\t".join(cells))
    return "\n".join(lines)


def _swapped_ipv4(digits: str, tokens: Tokens) -> int:
    octets = bytes.fromhex(digits)[::-1]
    mapped = tokens.ipv4(".".join(map(str, octets)))
    return int.from_bytes(bytes(int(octet) for octet in mapped.split(".")), "little")


def _long_ipv6(text: str, tokens: Tokens) -> str:
    """/proc/net/if_inet6 and ipv6_route: addresses as 32 digits without colons."""

    def change(found: re.Match[str]) -> str:
        number = int(found[1], 16)
        mapped = tokens.ipv6_number(number)
        host_bits = (1 << (128 - min(int(found[2] or "80", 16), 128))) - 1
        return f"{mapped if number & host_bits else mapped & ~host_bits:032x}{' ' if found[2] else ''}{found[2] or ''}"

    return re.sub(r"\b([0-9a-f]{32})\b(?: ([0-9a-f]{2})\b)?", change, text)


_SLURM_KEPT = (
    "propagateresourcelimits",
    "taskplugin",
    "proctracktype",
    "selecttype",
    "prologflags",
    "jobacctgather",
    "switchtype",
)


def _slurm(content: Any) -> Any:
    """slurm.conf without what names the site's hosts, partitions and accounts: only settings that rules may read."""
    if not isinstance(content, (str, list)):
        return content
    lines = content.split("\n") if isinstance(content, str) else [line for line in content if isinstance(line, str)]
    return [line for line in lines if line.strip().lower().startswith(_SLURM_KEPT)]


def _nothing(_text: str, _tokens: Tokens) -> str:
    """Tables of connections say who talks to whom; no rule reads them."""
    return ""


_TABLES: dict[str, Callable[[str, Tokens], str]] = {
    "route": _route,
    "if_inet6": _long_ipv6,
    "ipv6_route": _long_ipv6,
    **dict.fromkeys(("tcp", "tcp6", "udp", "udp6", "unix", "raw", "raw6", "arp"), _nothing),
}
