"""Predict the network that NCCL and Gloo choose, by their own algorithms.

Read in NVIDIA/nccl, tags 2.8 to 2.30.7: ``src/misc/socket.cc`` and ``src/os/linux.cc`` (interfaces), ``src/misc/utils.cc`` (lists),
``src/bootstrap.cc``, ``src/transport/net_ib/init.cc`` (HCAs); in facebookincubator/gloo ``transport/tcp/device.cc``; in pytorch
``ProcessGroupGloo.cpp``. What changed: 2.28.3 left out interfaces without IFF_RUNNING, and ``virbr*`` until last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from torchtune_sys.model.facts.network import Address, Interface, RdmaDevice, RdmaPort
from torchtune_sys.model.values import known, need
from torchtune_sys.model.version import Version

NEWEST: Version = (2, 30, 7)
"""The newest NCCL whose sources were read; assumed where the version is not known."""
RUNNING_ONLY_SINCE: Version = (2, 28, 3)
GID_AUTOMATIC_SINCE: Version = (2, 21, 5)
MAX_INTERFACES = 16
MAX_HCAS = 32

Settings = Mapping[str, str]
"""Effective NCCL_* variables."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """A value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA, as NCCL takes it apart."""

    exclude: bool
    exact: bool
    entries: tuple[tuple[str, int], ...]
    """(name or prefix, port); port -1 stands for every port."""

    def chosen(self, name: str, port: int = -1) -> bool:
        """Return whether NCCL would take ``name``. An empty list holds every name."""
        listed = not self.entries or any(self.holds(entry, name, port) for entry in self.entries)
        return listed != self.exclude

    def holds(self, entry: tuple[str, int], name: str, port: int = -1) -> bool:
        word, wanted = entry
        return (name == word if self.exact else name.startswith(word)) and (port == wanted or -1 in (port, wanted))


def parse_names(value: str, limit: int = MAX_INTERFACES) -> Names:
    """Parse a list of interfaces: ``^`` and then ``=`` at the very start hold for the whole list; commas divide; ``:port`` may follow a name.

    >>> parse_names("^=docker0,lo") == Names(exclude=True, exact=True, entries=(("docker0", -1), ("lo", -1)))
    True
    >>> parse_names("eth1").chosen("eth10"), parse_names("=eth1").chosen("eth10")
    (True, False)
    """
    exclude = value.startswith("^")
    value = value[1:] if exclude else value
    exact = value.startswith("=")
    value = value[1:] if exact else value
    entries: list[tuple[str, int]] = []
    for part in value.split(","):
        name, _, port = part.partition(":")
        if name and len(entries) < limit:
            digits = port.partition(":")[0]
            entries.append((name[:63], as_number(digits, 10) if digits else -1))
    return Names(exclude=exclude, exact=exact, entries=tuple(entries))


def as_number(text: str, base: int = 0) -> int:
    """Parse a number as C's strtoll: blanks, a sign, digits; what follows is ignored, and a word is 0.

    >>> as_number("1"), as_number("0x10"), as_number("true"), as_number(" -2x")
    (1, 16, 0, -2)
    """
    text = text.lstrip(" \t\n\v\f\r")
    sign = -1 if text.startswith("-") else 1
    text = text[1:] if text[:1] in ("+", "-") else text
    if base == 0:
        base = 16 if text[:2].lower() == "0x" else 8 if text.startswith("0") else 10
        text = text[2:] if base == 16 else text
    digits = "0123456789abcdef"[:base]
    length = 0
    while length < len(text) and length < 20 and text[length].lower() in digits:
        length += 1
    return sign * int(text[:length], base) if length else 0


class InterfaceChoice(msgspec.Struct, frozen=True, kw_only=True):
    interface: str
    address: str


class ChoiceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One search in NCCL's order, and what it found."""

    search: str
    found: tuple[str, ...]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    choices: tuple[InterfaceChoice, ...]
    """What NET/Socket would use, in NCCL's order; empty: NCCL fails with "no socket interface found"."""
    bootstrap: InterfaceChoice | None
    """What the first contact between ranks uses: the first choice, or what NCCL_COMM_ID decides where it is set; None: NCCL fails."""
    reason: str
    steps: tuple[ChoiceStep, ...]
    comm_id_fault: str = ""
    """Why NCCL fails on NCCL_COMM_ID, whatever the interfaces are."""
    undecided: str = ""
    """What could not be predicted: a host name in NCCL_COMM_ID."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(choice.interface for choice in self.choices)


def predict_interfaces(interfaces: tuple[Interface, ...], settings: Settings, nccl: Version = NEWEST) -> Prediction:
    """Return what NCCL's ncclFindInterfaces would choose. Raises Unknown where an address or a carrier that decides was not read."""
    family = {"AF_INET": "inet", "AF_INET6": "inet6"}.get(settings.get("NCCL_SOCKET_FAMILY", ""), "")
    steps: list[ChoiceStep] = []

    def search(words: str) -> tuple[InterfaceChoice, ...]:
        found = _find(interfaces, parse_names(words), family, nccl)
        steps.append(ChoiceStep(search=words, found=tuple(choice.interface for choice in found)))
        return found

    wanted = settings.get("NCCL_SOCKET_IFNAME", "")
    comm_id = CommId() if "NCCL_COMM_ID" not in settings else _in_comm_id_subnet(interfaces, settings["NCCL_COMM_ID"])
    if len(wanted) > 1:
        choices, reason = search(wanted), f"NCCL_SOCKET_IFNAME={wanted}"
    else:
        choices, reason = _automatic(search, comm_id.choice, nccl)
    first = choices[0] if choices and not comm_id.fault else None
    return Prediction(
        choices=choices,
        bootstrap=comm_id.choice or first,
        reason=reason,
        steps=tuple(steps),
        comm_id_fault=comm_id.fault,
        undecided=comm_id.undecided,
    )


def _automatic(
    search: Callable[[str], tuple[InterfaceChoice, ...]], subnet: InterfaceChoice | None, nccl: Version
) -> tuple[tuple[InterfaceChoice, ...], str]:
    if found := search("ib"):
        return found, "names that start with ib come first"
    if subnet is not None:
        return (subnet,), "in the subnet of NCCL_COMM_ID"
    virtual = nccl >= RUNNING_ONLY_SINCE
    shunned = "^docker,lo,virbr" if virtual else "^docker,lo"
    if found := search(shunned):
        return found, f"every interface but {shunned[1:].replace(',', '*, ')}*"
    for last in ("docker", "lo", "virbr") if virtual else ("docker", "lo"):
        if found := search(last):
            return found, f"nothing is left but {last}"
    return (), "no interface has a usable address"


def _find(interfaces: tuple[Interface, ...], names: Names, family: str, nccl: Version) -> tuple[InterfaceChoice, ...]:
    """Return the first usable address of each interface that ``names`` lets through, in the order of getifaddrs."""
    found: list[tuple[int, InterfaceChoice]] = []
    for interface in interfaces:
        if not names.chosen(interface.name) or (nccl >= RUNNING_ONLY_SINCE and not need(interface.running)):
            continue
        usable = [address for address in need(interface.addresses) if _usable(address, family)]
        if usable:
            first = min(usable, key=lambda address: address.position)
            found.append((first.position, InterfaceChoice(interface=interface.name, address=first.address)))
    return tuple(choice for _, choice in sorted(found, key=lambda pair: pair[0]))[:MAX_INTERFACES]


def _usable(address: Address, family: str) -> bool:
    return family in ("", address.family) and address.address not in _IPV6_LOOPBACK


class CommId(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL_COMM_ID decides; nothing where it is not set."""

    choice: InterfaceChoice | None = None
    fault: str = ""
    undecided: str = ""


def _in_comm_id_subnet(interfaces: tuple[Interface, ...], comm_id: str) -> CommId:
    """bootstrapNetInit: a variable that is set must hold an address, and an interface must be in its subnet, running or not."""
    if len(comm_id) < 2:  # set, but empty: no address either
        return CommId(fault="it holds no address")
    text, zone = comm_id.lstrip(",").partition(",")[0].partition(":")[0], ""
    if comm_id.startswith("["):
        inside, closed, _ = comm_id[1:].partition("]")
        if not closed:
            return CommId(fault="it lacks the ] behind the address")
        text, _, zone = inside.partition("%")
    remote = number_of(text)
    if remote is None:
        return CommId(undecided=f"NCCL_COMM_ID names the host {text}, whose address decides")
    matching = [
        (address.position, InterfaceChoice(interface=interface.name, address=address.address))
        for interface in interfaces
        for address in need(interface.addresses)
        if _same_subnet(address, remote) and (zone or interface.name) == interface.name and _scope_agrees(address, zone)
    ]
    if not matching:
        return CommId(fault=f"no interface is in the subnet of {text}")
    return CommId(choice=min(matching, key=lambda pair: pair[0])[1])


def _same_subnet(mine: Address, remote: tuple[int, int]) -> bool:
    own, length = number_of(mine.address), need(mine.prefix_length)
    bits = remote[0]
    return (
        own is not None and own[0] == bits and 0 <= length <= bits and own[1] >> (bits - length) == remote[1] >> (bits - length)
    )


def _scope_agrees(mine: Address, zone: str) -> bool:
    """matchSubnet compares scope ids, too: a link-local address has that of its interface, every other has none."""
    return mine.family != "inet6" or is_link_local(mine.address) == bool(zone)


def number_of(text: str) -> tuple[int, int] | None:
    """Return an address as (32 or 128, number); None for what is none.

    >>> number_of("10.0.0.11"), number_of("::1"), number_of("trainer-01")
    ((32, 167772171), (128, 1), None)
    """
    import ipaddress

    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return address.max_prefixlen, int(address)


class GlooPrediction(msgspec.Struct, frozen=True, kw_only=True):
    choices: tuple[InterfaceChoice, ...]
    missing: tuple[str, ...]
    """Entries of GLOO_SOCKET_IFNAME without such an interface or without an address on it: torch stops there."""
    reason: str


def predict_gloo(
    interfaces: tuple[Interface, ...], hostname_addresses: tuple[str, ...], wanted: tuple[str, ...] = ()
) -> GlooPrediction:
    """Return the named interfaces, exactly; else the first of the host name's addresses that this host can bind; else loopback."""
    if wanted:
        found = {name: _first_address(interfaces, name) for name in wanted}
        choices = tuple(InterfaceChoice(interface=name, address=address) for name, address in found.items() if address)
        missing = tuple(name for name, address in found.items() if not address)
        return GlooPrediction(choices=choices, missing=missing, reason=f"GLOO_SOCKET_IFNAME={','.join(wanted)}")
    for address in hostname_addresses:
        owner = _owner(interfaces, address)
        if owner:
            choice = InterfaceChoice(interface=owner, address=address)
            return GlooPrediction(choices=(choice,), missing=(), reason="the host name resolves to it")
    fallback = InterfaceChoice(interface="lo", address="127.0.0.1")
    return GlooPrediction(choices=(fallback,), missing=(), reason="the host name resolves to no address of this host")


def share_subnet(interfaces: tuple[Interface, ...], one: InterfaceChoice, other: InterfaceChoice) -> bool:
    """Return whether two choices are the same interface, or have an address in the same subnet."""
    if one.interface == other.interface:
        return True
    remotes = [remote for remote in map(number_of, _addresses_of(interfaces, other)) if remote is not None]
    return any(
        _same_subnet(address, remote)
        for interface in interfaces
        if interface.name == one.interface
        for address in need(interface.addresses)
        if not is_link_local(address.address)
        for remote in remotes
    )


def _addresses_of(interfaces: tuple[Interface, ...], choice: InterfaceChoice) -> list[str]:
    return [address.address for row in interfaces if row.name == choice.interface for address in need(row.addresses)]


def _first_address(interfaces: tuple[Interface, ...], name: str) -> str:
    addresses = [address for interface in interfaces if interface.name == name for address in need(interface.addresses)]
    return min(addresses, key=lambda address: address.position).address if addresses else ""


def _owner(interfaces: tuple[Interface, ...], address: str) -> str:
    """Return the interface with that address; the whole of 127/8 is the host's own without being assigned."""
    if is_loopback(address):
        return "lo"
    for interface in interfaces:
        if any(_same_address(mine.address, address) for mine in need(interface.addresses)):
            return interface.name
    return ""


def _same_address(left: str, right: str) -> bool:
    if ":" not in left or ":" not in right:
        return left == right
    return left == right or number_of(left) == number_of(right) is not None


_IPV6_LOOPBACK = ("::1", "0:0:0:0:0:0:0:1")
"""As inet_ntop writes it, and as /proc/net/if_inet6 is read."""


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in _IPV6_LOOPBACK


def is_link_local(address: str) -> bool:
    """Return whether an address is in 169.254/16 or fe80::/10: reachable on one wire only.

    >>> is_link_local("169.254.1.2"), is_link_local("febf::1"), is_link_local("fec0::1"), is_link_local("fe8::1")
    (True, True, False, False)
    """
    head = address.partition(":")[0].lower()
    return address.startswith("169.254.") or (":" in address and len(head) == 4 and head[:3] in ("fe8", "fe9", "fea", "feb"))


def ib_disabled(settings: Settings) -> bool:
    """Return whether NCCL is told to leave RDMA ports alone; it compares the network's name without regard to case (ncclNetInit).

    >>> ib_disabled({"NCCL_NET": "socket"}), ib_disabled({"NCCL_NET": "IB"}), ib_disabled({"NCCL_IB_DISABLE": "1"}), ib_disabled({})
    (True, False, True, False)
    """
    return as_number(settings.get("NCCL_IB_DISABLE", "")) != 0 or settings.get("NCCL_NET", "").lower() == "socket"


def usable_ports(devices: tuple[RdmaDevice, ...], hca: str = "") -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
    """Return the ports that NET/IB would open: active, InfiniBand or Ethernet, and let through by NCCL_IB_HCA (``hca``)."""
    names = parse_names(hca, MAX_HCAS)
    found = [
        (device, port)
        for device in devices
        for port in device.ports
        if names.chosen(device.name, port.port)
        and need(port.state) == "ACTIVE"
        and need(port.link_layer) in ("InfiniBand", "Ethernet")
    ]
    return tuple(found[:MAX_HCAS])


FAST_GBPS = 100.0
"""From which rate on an Ethernet port is taken for one of a network for training."""


def is_made_for_training(port: RdmaPort) -> bool:
    """Return whether a port is of a network that people train over: InfiniBand, EFA, or Ethernet of 100 Gb/s or more.

    The ports on a server's board (Intel's E810 and X722, Broadcom's) are RDMA devices, too, and carry logins and files.
    """
    return need(port.link_layer) != "Ethernet" or known(port.rate_gbps, 0.0) >= FAST_GBPS


def plugin_ports(devices: tuple[RdmaDevice, ...]) -> tuple[RdmaPort, ...]:
    """Return the active ports of fabrics that NCCL reaches by a plug-in alone (EFA by libfabric's): neither InfiniBand nor Ethernet.

    NCCL_IB_DISABLE and NCCL_IB_HCA say nothing to a plug-in.
    """
    return tuple(
        port
        for device in devices
        for port in device.ports
        if need(port.link_layer) not in ("InfiniBand", "Ethernet") and need(port.state) == "ACTIVE"
    )
