"""One bash script that takes a host from bare to proven: its stages in order, through a reboot, as often as it is run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from torchtune_sys import __version__
from torchtune_sys.model.actions import Needs
from torchtune_sys.model.install import (
    RUNNING,
    RUNNING_VERSION,
    Action,
    InstallCommand,
    InstallFile,
    InstallStep,
    KernelPackages,
    Key,
    Packages,
    PythonEnvironment,
)
from torchtune_sys.model.plan import Plan
from torchtune_sys.model.provision import Provision
from torchtune_sys.render.generate.install import refusal
from torchtune_sys.render.generate.script import MadeFor, quote, script
from torchtune_sys.render.layout import clean

_SUFFIX = {"dnf": ".rpm", "zypper": ".rpm", "pacman": ".pkg.tar.zst"}
_ONLINE_STEPS = ("repository", "contrib", "epel")
"""Steps that make a repository known: without a network there is none."""
_OF_REPOSITORIES = ("dnf module ", "dnf versionlock ")
"""Commands that ask the repositories' metadata; what lies in a folder is no repository."""
_DEVICES = {"cuda": "this host with its GPUs", "cpu": "this host, on its CPUs,", "auto": "this host"}


def provisioning(value: Provision, smoke: str, made_for: MadeFor | None = None) -> str:
    """Return the script of the stages; ``smoke`` is the smoke test as one script of Python; ``made_for`` the host that alone it is for, unless it is forced."""
    from torchtune_sys.render.templates import environment

    template = environment({"quote": quote, "comment": clean}).get_template("provision/provision.sh.j2")
    steps = [_step(step) for step in value.steps]
    called = {call[0] for step in steps for call in step["calls"]}
    return template.render(
        version=__version__,
        host=value.host or "a host without a name",
        origin=value.origin,
        about=tuple(_about(value)),
        made_for=made_for if made_for != MadeFor() else None,
        stages=value.stages,
        offline=value.offline,
        steps=steps,
        way=_hash(repr(steps))[:12],
        manager=_manager(value),
        suffix=_SUFFIX.get(_manager(value), ""),
        files="file" in called,
        units="units" in called,
        commands="perform" in called,
        fetches="fetch" in called,
        trusts="trust_key" in called,
        for_kernel="for_kernel" in called,
        environment=value.environment,
        abi=value.wheel.abi if value.wheel else "",
        refused=[line for refused in value.refused for line in refusal(refused)],
        notes=[clean(note) for note in value.notes if note.startswith(("by hand: ", "not available: ", "not pinned: "))],
        by_hand=[f"by hand: {clean(step.title)}: {clean(step.by_hand)}" for step in value.by_hand if not value.refused],
        tune=_tune(value.tune),
        smoke={**_held(smoke, "SMOKE"), "title": "the training smoke test"} if "smoke" in value.stages else None,
        python=value.python,
        device=value.device,
        device_words=_DEVICES[value.device],
    )


def _about(value: Provision) -> Iterator[str]:
    yield value.system
    if value.wheel is not None:
        yield f"torch {value.wheel.local} for {value.wheel.abi}, from {value.wheel.index or 'PyPI'}, trains with {value.python}"
    yield from value.notes


def _manager(value: Provision) -> str:
    return next(
        (item.manager for step in value.steps for item in step.actions if isinstance(item, Packages | KernelPackages)), ""
    )


def _step(step: InstallStep) -> dict[str, Any]:
    online = step.key in _ONLINE_STEPS
    calls = [call for action in step.actions for call in _calls(action, online)]
    remembered = [call for call in calls if call[0] in ("perform", "fetch", "trust_key")]
    return {
        "key": step.key,
        "title": clean(step.title),
        "calls": calls,
        "hash": _hash(repr((step.key, remembered)))[:24] if remembered else "",
        "reboot": step.reboot,
        "online": online,
    }


def _calls(action: Action, online: bool) -> Iterator[tuple[str, ...]]:
    """Yield the functions of the script that do it, and that can ask whether it is done."""
    match action:
        case Packages(names=names):
            yield ("packages", *names)
        case KernelPackages(choices=choices):
            words = [
                (pattern, *(name.replace(RUNNING, "%k").replace(RUNNING_VERSION, "%v") for name in names), "--")
                for pattern, names in choices
            ]
            yield ("for_kernel", *(word for choice in words for word in choice))
        case InstallFile(path=path, text=text):
            yield ("file", path, text)
        case Key():
            yield ("trust_key", action.path, action.url, action.fingerprint)
        case PythonEnvironment():
            yield ("environment", action.venv, action.program, action.local, action.index, *action.specifiers)
        case InstallCommand(words=("apt-get", "update")):
            yield ("stale",)
        case InstallCommand(words=("systemctl", "enable", "--now", *units)):
            yield ("units", "now", *units)
        case InstallCommand(words=("systemctl", "enable", *units)):
            yield ("units", "enable", *units)
        case InstallCommand(words=("curl", "-fsSL", "-o", path, url)):
            yield ("fetch", path, url)
        case InstallCommand(words=words):
            network = online or "refresh" in words or any(asks in " ".join(words) for asks in _OF_REPOSITORIES)
            yield ("perform", "online" if network else "any", *words)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _held(text: str, name: str) -> dict[str, Any]:
    """Return a whole script inside this one, as it is: its end is a line that it does not have."""
    text = text.removesuffix("\n")
    end = f"END_OF_{name}"
    while f"\n{end}\n" in f"\n{text}\n":
        end += "_"
    return {"text": text, "end": end, "hash": _hash(text + "\n")}


def _tune(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    count = len(plan.changes)
    return {
        **_held(script(plan), "TUNE"),
        "title": f"{count} change{'' if count == 1 else 's'} of the plan",
        "reboot": any(change.needs is Needs.REBOOT for change in plan.changes),
    }
