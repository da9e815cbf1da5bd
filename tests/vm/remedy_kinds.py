"""Runs in the guest: applies one action of each kind that no rule asks for on such a machine, the way ``apply`` does."""

from typing import Any

from torchtune_sys.cli.privilege import boot_id
from torchtune_sys.host.live import LiveHost
from torchtune_sys.model.actions import Action, KernelArgument, ModuleOption, OwnedFile, Safety
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.plan import Change, Plan
from torchtune_sys.model.plan_context import OWNED
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.plan_context import probe as ground
from torchtune_sys.remediation import plan as planner
from torchtune_sys.remediation.apply import session
from torchtune_sys.remediation.plan import change_requests, files, steps

ACTIONS: tuple[Action, ...] = (
    ModuleOption(module="null_blk", option="nr_devices=3", safety=Safety.UNSAFE),
    KernelArgument(argument="iommu=pt"),
    OwnedFile(
        path="/etc/systemd/system/systemd-timesyncd.service.d/90-torchtune-sys.conf",
        content="[Service]\nLimitMEMLOCK=infinity\n",
    ),
)


def main() -> None:
    host = LiveHost()
    own = [action.path for action in ACTIONS if isinstance(action, OwnedFile)]
    found = ground.probe(host, (), (*OWNED, *own))
    unseen = Missing(Why.NOT_RECORDED, "a test")
    families: dict[str, Any] = dict.fromkeys(FAMILIES, unseen)
    nothing = Snapshot(intent=Workload(), **families)
    changes: list[Change] = []
    for action in ACTIONS:
        wish = change_requests.ChangeRequest(rule="a-test", why="A test asks", seen="", wanted="", action=action)
        made = steps.change(
            nothing, found, change_requests.RequestGroup(key=change_requests.key(action), requests=(wish,), merged=action)
        )
        assert isinstance(made, Change), made
        changes.append(made)
    plan = Plan(host="", origin="live", changes=tuple(changes), files=files.owned(changes, found), refused=(), by_hand=())
    moment = session.Moment(version="test", time="2026-01-01T00:00:00Z", boot_id=boot_id())
    done = session.run(
        plan, lambda failed: planner.part(plan, found, lambda change: change.key not in failed).files, lambda: False, moment
    )
    print(done)
    assert not done.failed and not done.rolled_back


main()
