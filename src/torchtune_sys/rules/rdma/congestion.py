"""Rules on equal congestion control of the host's RoCE ports."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import nccl
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.numbers import counted
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, absent_or_unrecorded, known, need
from torchtune_sys.rules.rdma.common import outward

_POINTS = {"roce_np": "notification point", "roce_rp": "reaction point"}


@rule(
    id="roce-congestion-control-differs",
    title="RoCE ports of the same card model have different congestion control",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="configure all rails the same way, in whatever sets them up at boot: "
            "/sys/class/net/IF/ecn/roce_np/enable/PRIORITY and "
            "roce_rp/enable/PRIORITY, or mlnx_qos; and the switch ports to match"
        ),
    ),
)
def roce_congestion_control_differs(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Among the active RoCE ports of one card model, some have a different ECN (DCQCN) setting for a priority than most.

    Why it matters
    A port without ECN does not slow down when the switch marks packets, or does not notify the sender. Whenever several hosts
    send to one, its rail drops packets or fills the fabric with pause frames. The usual cause is a card that was replaced or
    reset after the initial configuration.

    When to leave it
    The odd port deliberately belongs to another network (storage); that of the default route is not judged. Whether ECN should be on at all depends on the switches and is
    not judged.

    References
    https://docs.nvidia.com/networking/display/mlnxofedv24103250lts/explicit+congestion+notification+(ecn)
    """
    for group in _groups(s).values():
        for point, title in _POINTS.items():
            masks = {name: facts[point] for name, facts in group.items() if point in facts}
            usual = max(masks.values(), key=lambda mask: list(masks.values()).count(mask), default="")
            if list(masks.values()).count(usual) * 2 <= len(group):
                continue
            for name, mask in masks.items():
                if mask != usual:
                    yield Evidence(
                        subject=name,
                        seen=f"{title} {_words(mask)}",
                        wanted=f"{_words(usual)}, as most of its {counted(len(group) - 1, 'sibling')}",
                        source=f"/sys/class/net/{name}/ecn/{point}/enable",
                    )
    for name, missing in _unread(s):
        yield unsure(name, missing, "as its siblings")
    if not _unread(s):
        yield Evidence(subject="RoCE ports", seen="compared", verdict=Verdict.PASS, source="/sys/class/net")


def _words(mask: str) -> str:
    on = [str(priority) for priority, digit in enumerate(mask) if digit == "1"]
    return "on for every priority" if len(on) == 8 else f"on for priority {', '.join(on)}" if on else "off"


def _groups(s: Snapshot) -> dict[str, dict[str, dict[str, str]]]:
    """Card model → interface → its settings; NotApplicable without three of a kind."""
    groups: dict[str, dict[str, dict[str, str]]] = {}
    silent: Missing | None = None
    found, apart = need(s.network).rdma, outward(s)
    for device, port in nccl.usable_ports(() if absent(found) else need(found)):
        names = known(device.interfaces, ())
        if port.link_layer != "Ethernet" or not names or isinstance(device.board, Missing) or apart.intersection(names):
            continue
        if isinstance(device.congestion, Missing):
            silent = device.congestion if not absent_or_unrecorded(device.congestion) else silent
        else:
            groups.setdefault(device.board, {})[names[0]] = device.congestion
    groups = {board: group for board, group in groups.items() if len(group) > 2}
    if not groups:
        if silent is not None:
            need(silent)
        raise NotApplicable("there are fewer than three active RoCE ports of one card model with known settings")
    return groups


def _unread(s: Snapshot) -> list[tuple[str, Missing]]:
    ports = nccl.usable_ports(need(need(s.network).rdma))
    return [
        (device.name, device.congestion)
        for device, port in ports
        if port.link_layer == "Ethernet"
        and isinstance(device.congestion, Missing)
        and not absent_or_unrecorded(device.congestion)
    ]
