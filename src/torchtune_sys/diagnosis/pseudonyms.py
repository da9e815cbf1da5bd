"""Replace names, addresses, serial numbers, paths and values in a text consistently; keep what a cause needs.

Secrets go first (``host/secrets/filter.py``). Kept: loopback, link-local and Docker's addresses, sizes and versions, the paths of systems and packages,
the values of variables that steer training.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable

from torchtune_sys.host.environment import PREFIXES
from torchtune_sys.host.secrets.filter import scrubbed

_UUID = re.compile(r"\b(?P<kind>GPU-|MIG-)?[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")
_MAC = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}(?![0-9a-fA-F:])")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,6}")
_DOMAIN = re.compile(
    r"(?<![\w.@/-])(?:[\w-]{1,63}\.){1,6}(?:com|org|net|edu|gov|io|ai|de|fr|uk|ch|eu|cn|jp|kr|in|cloud|local|internal|intra|lan|corp|cluster|example|home|private)\b(?!\()"
)
_PUBLIC = re.compile(
    r"(?:^|\.)(?:pytorch|github|githubusercontent|nvidia|python|pypi|docker|pythonhosted|huggingface|anaconda|ubuntu|debian|kernel|gnu|kubernetes|openssl|google|googleapis)\.(?:org|com|io|co|net)$"
)
_SERIAL = re.compile(
    r"(?i)(\b(?:serial(?: ?(?:number|no\.?))?|s/n|board (?:serial|part)|chassis|node guid|port guid|system image guid|guid|machine[- ]id|boot[- ]id|asset tag)\b[\"']?\s{0,40}[:=]\s{0,8}[\"']?)([\w:.-]{3,64})"
)
_USER = re.compile(
    r"(?P<before>/home/|/Users/|/var/home/|(?:^|[\s(])(?:user(?:name)?|USER|LOGNAME|owner)[ :=]{1,3}|--user[= ])(?P<name>[A-Za-z_][\w.-]{0,31})"
)
_PROMPT = re.compile(r"(?P<user>\b[A-Za-z_][\w.-]{0,31})@(?P<host>[A-Za-z][\w-]{0,62})(?=[:~ \]])")
_HOST = re.compile(
    r"(?i)(?P<before>\b(?:host ?name|host|node ?name|node|server|master_addr|nodelist|hosts?)[\"']?(?:\s{0,3}[:=]\s{0,3}| )[\"']?|\bLinux )(?P<name>(?=[a-z][a-z_]{0,60}[\d-])[a-z][\w-]{1,100})\b"
)
_LOG_HOST = re.compile(
    r"(?m)^(?P<before>\[?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\d{4}-\d\d-\d\dT\S{8,24} )?)(?P<name>[A-Za-z][\w-]{1,62})(?=:\d+:\d+ \[| kernel: |:\d+:\d+ \[\d+\])"
)
_ENV = re.compile(r"(?P<name>(?<![\w.])[A-Z][A-Z0-9_]{2,60})=(?P<value>\"[^\"\n]{0,2000}\"|'[^'\n]{0,2000}'|[^\s\"',;]{1,2000})")
_PATH = re.compile(r"(?<![\w.:/<-])(?P<path>(?:~|\.{1,2})?/(?:[\w.+@%=-]{1,200}/){0,30}[\w.+@%=-]{1,200})")
_SYSTEM = re.compile(
    r"/(?:usr|lib\w{0,3}|etc|proc|sys|dev|bin|sbin|boot|opt/(?:nvidia|rocm|conda|hpcx|amazon)|root/\.(?:cache|triton)|var/(?:lib|log|run)|run|tmp|workspace|conda|opt/python|usr/local)(?:/|$)"
)
_TOP = frozenset(f"/{name}" for name in ("home", "root", "mnt", "media", "srv", "opt", "var", "data", "scratch", "Users"))
"""Directories that a file system is mounted on, by themselves: they name nobody."""
_HOME = re.compile(r"(/home/|/Users/|/var/home/)([^/]+)(/.*)?$")
_PACKAGES = re.compile(
    r"/(?:(?:site|dist)-packages|lib/python\d[\d.]*|envs?|torch|nccl|src/(?:transport|misc|include)|miniconda3?|anaconda3?|bin|lib(?:64)?|include)/"
)
_ENDING = re.compile(
    r"\.(?:py|sh|so(?:\.\d+)*|log|cc?|cpp|cu|cuh|hh?|hpp|whl|ya?ml|json|txt|out|err|pt|pth|ckpt|safetensors|tar|gz|zip)$"
)
_PLAIN_VALUES = re.compile(
    r"[\d.,:%+-]{1,60}|on|off|true|false|yes|no|none|auto|[A-Z_,]{1,40}|(?:eth|ens|enp|eno|ib|mlx|bond|lo|docker|veth|\^|=)[\w.,=^]{0,40}",
    re.IGNORECASE,
)
_GIVEN = re.compile(r"\b(?:host|user)-\d{1,9}\b")
_WORD = re.compile(r"[\w.-]+")
_LABELS = 64
_SHORT = 2
_GENERIC_USERS = frozenset(["root", "user", "ubuntu", "ec2-user", "runner", "nobody", "slurm", "app", "jovyan"])


class Pseudonyms:
    """The same name gets the same replacement in all that one object sees.

    >>> names = Pseudonyms()
    >>> names.text("joe@gpu-17:~$ python /home/joe/secret/train.py --host 10.3.2.1")
    'user-1@host-1:~$ python /home/user-1/path-1/file-1.py --host 10.0.0.1'
    >>> names.text("cd /home/joe; df -h /home")
    'cd /home/user-1; df -h /home'
    >>> names.text("gpu-17:55:90 [2] NCCL WARN Connect to 10.3.2.1<7> failed, 127.0.1.1, /dev/shm/nccl-X")
    'host-1:55:90 [2] NCCL WARN Connect to 10.0.0.1<7> failed, 127.0.1.1, /dev/shm/nccl-X'
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """``texts``: what will be seen. Names in it that look as if they were given here stay, and are given to nobody else."""
        self._taken = {found[0] for text in texts for found in _GIVEN.finditer(text)}
        self._given: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def text(self, text: str) -> str:
        text = scrubbed(text)
        self._learn(text)
        text = _MAIL.sub(lambda found: self._of("mail", found[0], lambda number: f"person-{number}@mail.example"), text)
        text = _PROMPT.sub(lambda found: f"{self._user(found['user'])}@{self._host(found['host'])}", text)
        text = _ENV.sub(self._value, text)
        text = _SERIAL.sub(lambda found: found[1] + self._of("serial", found[2], lambda number: f"serial-{number}"), text)
        text = _UUID.sub(self._uuid, text)
        text = _MAC.sub(
            lambda found: self._of("mac", found[0].lower(), lambda number: f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"),
            text,
        )
        text = _IPV4.sub(self._ipv4, text)
        text = _IPV6.sub(self._ipv6, text)
        text = _DOMAIN.sub(self._domain, text)
        text = _PATH.sub(lambda found: self._path(found["path"]), text)
        return self._word(text)

    def _of(self, kind: str, name: str, make: Callable[[int], str]) -> str:
        key = (kind, name)
        if key not in self._given:
            while True:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                self._given[key] = make(self._counts[kind])
                if self._given[key] not in self._taken:
                    break
        return self._given[key]

    def _learn(self, text: str) -> None:
        """Names of hosts and users, wherever else they stand."""
        for pattern, kind in ((_USER, self._user), (_HOST, self._host), (_LOG_HOST, self._host)):
            for found in pattern.finditer(text):
                kind(found["name"])
        for found in _PROMPT.finditer(text):
            self._user(found["user"]), self._host(found["host"])

    def _user(self, name: str) -> str:
        return (
            name
            if name in _GENERIC_USERS or name.startswith("user-")
            else self._of("user", name, lambda number: f"user-{number}")
        )

    def _host(self, name: str) -> str:
        return (
            name
            if name.lower() in ("localhost",) or name.startswith("host-")
            else self._of("host", name, lambda number: f"host-{number}")
        )

    def _word(self, text: str) -> str:
        """Names that are known by now, as words, also before a dot: one look-up for each word, however many names there are."""
        return _WORD.sub(self._known_word, text)

    def _known_word(self, found: re.Match[str]) -> str:
        word = found[0]
        ends = [len(word), *(at for at in range(len(word) - 1, 0, -1) if word[at] == ".")]
        for end in ends[:_LABELS]:
            name = word[:end]
            known = self._given.get(("host", name)) or self._given.get(("user", name))
            if known is not None and end > _SHORT:
                return known + word[end:]
        return word

    def _uuid(self, found: re.Match[str]) -> str:
        kind = found["kind"] or ""
        return kind + self._of("uuid", found[0].lower(), lambda number: f"00000000-0000-0000-0000-{number:012x}")

    def _ipv4(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv4Address(found[0])
        except ValueError:
            return found[0]
        if (
            address.is_loopback
            or address.is_unspecified
            or address.is_link_local
            or found[0].startswith(("172.17.", "172.18.", "192.168.122.", "255."))
        ):
            return found[0]
        return self._of("ip", found[0], lambda number: f"10.0.{number >> 8}.{number & 255}")

    def _ipv6(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv6Address(found[0])
        except ValueError:
            return found[0]
        if address.is_loopback or address.is_unspecified:
            return found[0]
        local = "fe80" if address.is_link_local else "fd00"
        return self._of("ip6", found[0].lower(), lambda number: f"{local}::{number:x}")

    def _domain(self, found: re.Match[str]) -> str:
        if _PUBLIC.search(found[0]):
            return found[0]
        first = found[0].partition(".")[0]
        return f"{self._host(first)}.example"

    def _value(self, found: re.Match[str]) -> str:
        value = found["value"].strip("\"'")
        steering = found["name"].startswith(PREFIXES) or found["name"] in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "MASTER_PORT",
            "MASTER_ADDR",
            "PATH",
            "TMPDIR",
        )
        if steering or _PLAIN_VALUES.fullmatch(value):
            return found[0]
        return f"{found['name']}={self._of('value', value, lambda number: f'value-{number}')}"

    def _path(self, path: str) -> str:
        if _SYSTEM.match(path) or path in _TOP:
            return path
        home = _HOME.match(path)
        if home is not None and not home[3]:
            return f"{home[1]}{self._user(home[2])}"
        package = _PACKAGES.search(path)
        head, tail = (path[: package.start()], path[package.start() :]) if package is not None else (path, "")
        if tail:
            return self._folder(head) + tail
        folder, _, name = path.rpartition("/")
        ending = _ENDING.search(name)
        if name.startswith("lib") and ending is not None and ".so" in ending[0]:
            return f"{self._folder(folder)}/{name}"
        last = self._of("file", name, lambda number: f"file-{number}") + (ending[0] if ending is not None else "")
        return f"{self._folder(folder)}/{last}"

    def _folder(self, folder: str) -> str:
        home = _HOME.match(folder)
        if home is not None:
            rest = self._of("path", home[3], lambda number: f"/path-{number}") if home[3] else ""
            return f"{home[1]}{self._user(home[2])}{rest}"
        return self._of("path", folder, lambda number: f"/path-{number}") if folder not in ("", "~", ".", "..") else folder
