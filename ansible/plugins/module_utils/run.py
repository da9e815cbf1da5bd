# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""What became of the changes of one run (schema torchtune-sys/run/1), and the plan before it (torchtune-sys/plan/1)."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

SCHEMA = "torchtune-sys/run/1"
PLAN = "torchtune-sys/plan/1"
HISTORY = "torchtune-sys/history/1"
MADE = ("cured", "lost-at-boot", "waits")
"""States of a change that was made."""
KINDS = {"next login": "login", "service restart": "service", "reboot": "reboot", "restart of the job": "job"}


def having(changes, *states):
    return [one for one in changes if one["state"] in states]


def planned(change):
    """A change of a plan as a run tells it."""
    keys = ("key", "seen", "wanted", "needs")
    return dict({key: change[key] for key in keys}, rule=", ".join(change["rules"]), state="planned")


def names(changes):
    return ", ".join(one["key"] for one in changes)


def waiting(changes):
    """Keys of what waits, by what it waits for: login, service, reboot, job."""
    found = {kind: [] for kind in KINDS.values()}
    for one in changes:
        if one["needs"] in KINDS:
            found[KINDS[one["needs"]]].append(one["key"])
    return found


def diff(plan, keys):
    """Before and after of every file, and of every running value, of the changes of these keys."""
    found, chosen = [], [change for change in plan["changes"] if change["key"] in keys]
    for change in chosen:
        for step in change["steps"]:
            if step["type"] == "value":
                found.append(_pair(step["path"], change["seen"], step["value"]))
            elif step["type"] == "unit":
                found.append(_pair(step["unit"], change["seen"], "enabled" if step["enabled"] else "disabled"))
            elif step["type"] == "command":
                found.append(_pair(" ".join(step["argv"]), "", "run"))
            elif len(chosen) != len(plan["changes"]):  # the plan's files hold what is not made, too
                found.append(_pair("%s (%s)" % (step["path"], change["key"]), "", step["text"]))
    if len(chosen) == len(plan["changes"]):
        found += [_pair(file["path"], file["before"], file["content"]) for file in plan["files"]]
    return found


def _pair(header, before, after):
    return dict(before_header=header, after_header=header, before=_lines(before), after=_lines(after))


def _lines(text):
    return "" if not text else text if text.endswith("\n") else text + "\n"
