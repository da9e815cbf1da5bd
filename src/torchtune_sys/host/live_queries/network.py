"""Interfaces and names, as the C library's getifaddrs and getaddrinfo give them.

The interfaces come from the two rtnetlink dumps that getifaddrs itself makes, through the C module ``_socket``. psutil and
ctypes would give the same addresses, but cost 22 ms and 5 ms to import (``socket`` itself 7 ms, this 1 ms), psutil loses the order
between interfaces (it groups by name), and neither gives the kind of link or the master, which are in the same dump.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

from torchtune_sys.host import threads
from torchtune_sys.host.base import missing_from
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTM_NEWLINK, _RTM_GETLINK, _RTM_NEWADDR, _RTM_GETADDR = 16, 18, 20, 22
_REQUEST_DUMP = 0x301
_FAMILIES = {2: "inet", 10: "inet6"}
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_QDISC, _IFLA_MASTER, _IFLA_OPERSTATE, _IFLA_LINKINFO = 3, 4, 5, 6, 10, 16, 18
_IFLA_INFO_KIND = 1
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
"""RFC 2863 states by the kernel's number (linux/if.h)."""


def interfaces(_argument: str, timeout_s: float) -> Fact[list[dict[str, Any]]]:
    """Return the addresses in getifaddrs order (a name occurs once per run of its addresses), then the interfaces that have none."""
    try:
        links = {link["index"]: link for link in (_link(body) for body in _dump(_RTM_GETLINK, _RTM_NEWLINK, timeout_s))}
        addresses = [_address(body) for body in _dump(_RTM_GETADDR, _RTM_NEWADDR, timeout_s)]
    except TimeoutError:
        return Missing(Why.TIMEOUT, "rtnetlink", f"no answer within {timeout_s:.3g} s")
    except OSError as error:
        return missing_from(error, "rtnetlink")
    except (struct.error, ValueError, IndexError) as error:
        return Missing(Why.UNPARSED, "rtnetlink", str(error))
    for link in links.values():
        link["master"] = links.get(link["master"], {}).get("name", "")
    return _joined(links, addresses)


def _joined(links: dict[int, dict[str, Any]], addresses: list[tuple[int, dict[str, Any]] | None]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    for item in addresses:
        if item is None or item[0] not in links:  # the link went away between the two dumps
            continue
        index, address = item
        if not found or found[-1]["index"] != index:
            found.append({**links[index], "addresses": []})
            seen.add(index)
        found[-1]["addresses"].append(address)
    found.extend({**link, "addresses": []} for index, link in links.items() if index not in seen)
    return found


def _dump(request: int, reply: int, timeout_s: float) -> Iterator[bytes]:
    """Bodies of the messages of one rtnetlink dump (see netlink(7), rtnetlink(7))."""
    import _socket

    handle = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _socket.NETLINK_ROUTE)
    try:
        handle.settimeout(max(timeout_s, 0.01))
        handle.bind((0, 0))
        body = struct.pack("BxHiII", 0, 0, 0, 0, 0)
        handle.send(struct.pack("IHHII", 16 + len(body), request, _REQUEST_DUMP, 1, 0) + body)
        while True:
            for kind, part in _messages(handle.recv(1 << 18)):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    number = -int(struct.unpack_from("i", part)[0])
                    raise OSError(number, os.strerror(number))
                if kind == reply:
                    yield part
    finally:
        handle.close()


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 16 <= len(data):
        length, kind = struct.unpack_from("IH", data, place)
        if length < 16:
            raise ValueError("a netlink message shorter than its header")
        yield kind, data[place + 16 : place + length]
        place += (length + 3) & ~3


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    place = 0
    while place + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, place)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[place + 4 : place + length]  # the two top bits are flags
        place += (length + 3) & ~3
    return found


def _link(body: bytes) -> dict[str, Any]:
    _, hardware, index, flags = struct.unpack_from("BxHiI", body)
    found = _attributes(body[16:])
    state = found.get(_IFLA_OPERSTATE, b"\0")[0]
    info = _attributes(found.get(_IFLA_LINKINFO, b""))
    return {
        "name": _text(found.get(_IFLA_IFNAME, b"")),
        "index": index,
        "type": hardware,
        "flags": flags,
        "mtu": _number(found.get(_IFLA_MTU)),
        "operstate": _OPERSTATES[state] if state < len(_OPERSTATES) else "unknown",
        "qdisc": _text(found.get(_IFLA_QDISC, b"")),
        "kind": _text(info.get(_IFLA_INFO_KIND, b"")),
        "link": _number(found.get(_IFLA_LINK)),
        "master": _number(found.get(_IFLA_MASTER)),
    }


def _address(body: bytes) -> tuple[int, dict[str, Any]] | None:
    import _socket

    family, prefix_length, _, _, index = struct.unpack_from("BBBBI", body)
    if family not in _FAMILIES:
        return None
    found = _attributes(body[8:])
    # On a point-to-point link IFA_ADDRESS is the peer's; IFA_LOCAL is ours (linux/if_addr.h).
    packed = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    if packed is None:
        return None
    words = _socket.inet_ntop(_socket.AF_INET if family == 2 else _socket.AF_INET6, packed)
    return index, {"family": _FAMILIES[family], "address": words, "prefix_length": prefix_length}


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")


def _number(raw: bytes | None) -> int:
    return int(struct.unpack_from("I", raw)[0]) if raw else 0


def hostname_addresses(_argument: str, timeout_s: float) -> Fact[list[str]]:
    """Return what getaddrinfo(gethostname()) returns, in its order."""
    import _socket

    return _addresses(_socket.gethostname(), timeout_s)


def localhost_addresses(_argument: str, timeout_s: float) -> Fact[list[str]]:
    """Return what getaddrinfo("localhost") returns, in its order; the hosts file alone has to answer."""
    found = _addresses("localhost", timeout_s)
    return [] if isinstance(found, Missing) and found.why is Why.ABSENT else found


def way_to(name: str, timeout_s: float) -> Fact[dict[str, list[str]]]:
    """Return what a name resolves to, and for each of these addresses this host's own on the way, or why the kernel would send nothing there."""
    found = _addresses(name, timeout_s)
    if isinstance(found, Missing):
        return found
    addresses = list(dict.fromkeys(found))
    ways = [_way(address) for address in addresses]
    return {"addresses": addresses, "refused": [refused for refused, _ in ways], "own": [own for _, own in ways]}


def _way(address: str) -> tuple[str, str]:
    import _socket

    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    try:
        tried = _socket.socket(family, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        try:
            tried.connect((address, 9))  # of UDP: it looks for a route, and sends nothing
            return "", str(tried.getsockname()[0]).partition("%")[0]
        finally:
            tried.close()
    except OSError as error:
        return (os.strerror(error.errno) if error.errno else str(error)), ""


def _addresses(name: str, timeout_s: float) -> Fact[list[str]]:
    """Return what a name resolves to. A dead name server costs the deadline, in a thread that is left behind."""
    found: list[Fact[list[str]]] = []
    try:
        threads.start(lambda: found.append(_resolve(name)))(timeout_s)
    except RuntimeError:
        return Missing(
            Why.FAILED,
            f"getaddrinfo({name})",
            "no thread could be started: the limit on processes or on address space is reached",
        )
    return found[0] if found else Missing(Why.TIMEOUT, f"getaddrinfo({name})", f"no answer within {timeout_s:.3g} s")


def _resolve(name: str) -> Fact[list[str]]:
    import _socket

    source = f"getaddrinfo({name})"
    try:
        answers = _socket.getaddrinfo(
            os.fsencode(name), None, _socket.AF_UNSPEC, _socket.SOCK_STREAM
        )  # text would load the IDNA codec
    except _socket.gaierror as error:
        if error.args[0] in (_socket.EAI_NONAME, getattr(_socket, "EAI_NODATA", _socket.EAI_NONAME)):
            return Missing(Why.ABSENT, source, str(error.args[-1]))
        return Missing(Why.FAILED, source, str(error.args[-1]))
    except (OSError, UnicodeError, ValueError) as error:
        return Missing(Why.FAILED, source, str(error))
    return [str(answer[4][0]).partition("%")[0] for answer in answers]
