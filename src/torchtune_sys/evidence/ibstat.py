"""Pasted listings of RDMA devices: ``ibstat``, ``ibstatus``, ``ibv_devinfo`` and ``rdma link``."""

from __future__ import annotations

from torchtune_sys.model.facts.network import NetworkFacts, RdmaDevice, RdmaPort
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why

_NOTHING = Missing(Why.NOT_RECORDED, "RDMA listing", "not in the report")
_STATES = {"initializing": "INIT", "armed": "ARMED", "active": "ACTIVE", "down": "DOWN", "init": "INIT"}
_PHYSICAL = {
    word.lower(): word
    for word in ("LinkUp", "Polling", "Disabled", "Sleep", "PortConfigurationTraining", "LinkErrorRecovery", "PhyTest")
}
_MOST_DEVICES = 256

Fields = dict[str, str]
Found = dict[str, tuple[Fields, dict[int, Fields]]]
"""Device → its fields, and those of its ports."""


def network_facts(text: str) -> NetworkFacts | None:
    """Return the RDMA devices of a report, everything else NOT_RECORDED; None where it lists none."""
    devices = parse_devices(text)
    if not devices:
        return None
    rest = dict.fromkeys(
        ("interfaces", "default_route_interface", "hostname_addresses", "verbs_nodes", "nccl", "nccl_files", "gloo_interfaces"),
        _NOTHING,
    )
    return NetworkFacts(rdma=devices, **rest)


def parse_devices(text: str) -> tuple[RdmaDevice, ...]:
    r"""Return the devices in the order of the report; one that several listings name is filled from all of them.

    >>> text = "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tLink layer: InfiniBand\n"
    >>> port = parse_devices(text)[0].ports[0]
    >>> port.port, port.state, port.physical_state, port.link_layer
    (1, 'DOWN', 'Polling', 'InfiniBand')
    """
    found: Found = {}
    name, number = "", 0
    for line in text.split("\n"):
        start = _start(line.strip())
        if start is not None:
            name, number = start[0], start[1]
            _fields(found, name, number).update(_words(line) if " state " in line else {})
        elif name:
            key, colon, value = (part.strip() for part in line.partition(":"))
            field = key.lower().replace(" ", "_")
            if field == "port" or (key.startswith("Port ") and _number(key[5:])):
                number = _number(value or key[5:])
            elif colon and field in _KEYS:
                _fields(found, name, number if field in _OF_PORT else 0).setdefault(field, value)
            elif line.strip() and (not colon or "@" in key):
                name = ""  # a prompt, or another command's output
    return tuple(_device(name, own, ports) for name, (own, ports) in list(found.items())[:_MOST_DEVICES] if ports)


_OF_PORT = frozenset(
    ("state", "physical_state", "phys_state", "rate", "link_layer", "base_lid", "port_lid", "sm_lid", "netdev", "port_lmc")
)
_KEYS = _OF_PORT | {"ca_type", "firmware_version", "fw_ver", "board_id", "vendor_part_id"}


def _start(line: str) -> tuple[str, int] | None:
    """Return the device (and port) that a line begins, None for any other line."""
    for mark in ("CA '", "Infiniband device '"):
        if line.startswith(mark):
            name, _, rest = line[len(mark) :].partition("'")
            words = rest.split()
            return (name[:64], _number(words[1]) if words[:1] == ["port"] and len(words) > 1 else 0) if name else None
    words = line.split()
    if len(words) == 2 and words[0] == "hca_id:":
        return words[1][:64], 0
    if len(words) > 3 and words[0] == "link" and "/" in words[1] and words[2] in ("state", "subnet_prefix"):
        name, _, port = words[1].partition("/")
        return name[:64], _number(port)
    return None


def _words(line: str) -> Fields:
    """``rdma link``: pairs of words."""
    words = line.split()[2:]
    found = dict(zip(words[::2], words[1::2], strict=False))
    layer = {"link_layer": "InfiniBand"} if "subnet_prefix" in found else {"link_layer": "Ethernet"} if "netdev" in found else {}
    return {**{key: value for key, value in found.items() if key in _OF_PORT}, **layer}


def _fields(found: Found, name: str, number: int) -> Fields:
    own, ports = found.setdefault(name, ({}, {}))
    return ports.setdefault(number, {}) if number else own


def _number(text: str) -> int:
    return natural(text.strip().rstrip(":"), 3) or 0


def _device(name: str, own: Fields, ports: dict[int, Fields]) -> RdmaDevice:
    part = own.get("vendor_part_id", "")
    kind = own.get("ca_type") or (f"MT{part}" if natural(part) is not None and name.startswith("mlx") else "")
    return RdmaDevice(
        name=name,
        ports=tuple(_port(number, fields) for number, fields in sorted(ports.items())),
        firmware=own.get("firmware_version") or own.get("fw_ver") or _NOTHING,
        board=own.get("board_id") or _NOTHING,
        pci_address=_NOTHING,
        numa_node=_NOTHING,
        interfaces=next(((fields["netdev"],) for fields in ports.values() if fields.get("netdev")), _NOTHING),
        type=kind or _NOTHING,
    )


def _port(number: int, fields: Fields) -> RdmaPort:
    state = _last_word(fields.get("state", "")).removeprefix("PORT_").lower()
    physical = _last_word(fields.get("physical_state") or fields.get("phys_state") or "").replace("_", "").lower()
    return RdmaPort(
        port=number,
        state=_STATES.get(state) or (state.upper() if state else _NOTHING),
        physical_state=_PHYSICAL.get(physical) or (physical or _NOTHING),
        link_layer=fields.get("link_layer") or _NOTHING,
        rate_gbps=_rate(fields.get("rate", "")),
        gids=_NOTHING,
        lanes=_lanes(fields.get("rate", "")),
        sm_lid=_lid(fields.get("sm_lid", "")),
        lid=_lid(fields.get("base_lid") or fields.get("port_lid") or ""),
    )


def _last_word(text: str) -> str:
    """``4: ACTIVE`` of ibstatus, ``PORT_ACTIVE (4)`` of ibv_devinfo, ``Active`` of ibstat."""
    return next(iter(text.partition(":")[2].split() or text.split()), "")


def _rate(text: str) -> float | Missing:
    word = next(iter(text.split()), "")
    good = word.replace(".", "", 1).isascii() and word.replace(".", "", 1).isdigit() and len(word) < 8
    return float(word) if good and float(word) > 0 else _NOTHING


def _lanes(text: str) -> int | Missing:
    lanes = text.partition("(")[2].partition("X")[0]
    return int(lanes) if lanes in ("1", "2", "4", "8", "12") else _NOTHING


def _lid(text: str) -> int | Missing:
    try:
        return int(text, 0) if len(text) < 12 else _NOTHING
    except ValueError:
        return _NOTHING
