"""Drop-ins of systemd: for a person's own service, and for the defaults of all services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchtune_sys.errors import UserError
from torchtune_sys.model.job import JobVariable
from torchtune_sys.remediation.plan.units import UnitLimit
from torchtune_sys.render.generate import job
from torchtune_sys.render.layout import clean

NAME = "90-torchtune-sys.conf"
HEAD = "# Made by torchtune-sys generate."
MARK = "# Made by torchtune-sys"
"""How each file begins that may be written anew."""
DEFAULTS = f"/etc/systemd/system.conf.d/{NAME}"
_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@")
"""What a unit's name may hold (systemd.unit(5))."""


_NO_SERVICES = (".slice", ".scope", ".socket", ".target", ".timer", ".path", ".mount", ".automount", ".swap", ".device")


def drop_in(unit: str) -> str:
    """Return the path of a service's drop-in. Raises UserError for another kind of unit: systemd takes no notice of [Service] there.

    >>> drop_in("train@a"), drop_in("my.train.service")
    ('/etc/systemd/system/train@a.service.d/90-torchtune-sys.conf', '/etc/systemd/system/my.train.service.d/90-torchtune-sys.conf')
    """
    name = unit if unit.endswith(".service") else f"{unit}.service"
    stem = name.removesuffix(".service")
    if not stem.strip("@") or stem.startswith(("@", ".")) or not _SIGNS.issuperset(name) or len(name) > 200:
        raise UserError(f"{clean(unit)!r} is not the name of a systemd unit", "letters, digits and : - _ . \\ @")
    if stem.endswith(_NO_SERVICES):
        raise UserError(f"{unit} is no service", "limits and an environment belong to the services in it: name one")
    return f"/etc/systemd/system/{name}.d/{NAME}"


def service(limits: Iterable[UnitLimit], variables: Iterable[JobVariable]) -> str:
    """Return what the service of a job should have: its limits, then its environment. Empty: nothing is to be set."""
    rows = [row for limit in limits for row in (_comment(limit), f"{limit.name}={limit.value}")]
    environment = tuple(variables)
    own = job.systemd(environment).partition("\n")[2] if environment else ""
    return "\n".join([HEAD, "", "[Service]", *rows, own]) if rows or own else ""


def defaults(limits: Iterable[UnitLimit]) -> str:
    """Return a file for system.conf.d: what every service gets that says nothing of its own, from the next boot on (or after daemon-reexec)."""
    rows = [row for limit in limits for row in (_comment(limit), f"Default{limit.name}={limit.value}")]
    return "\n".join([HEAD, "", "[Manager]", *rows, ""]) if rows else ""


def _comment(limit: UnitLimit) -> str:
    return f"# {clean(limit.why)} [{limit.rule}]"


def together(files: Mapping[str, str]) -> str:
    """Return several files in one text, each below its path, as ``systemctl cat`` shows them."""
    return "\n".join(f"# {clean(path)}\n{content}" for path, content in files.items())
