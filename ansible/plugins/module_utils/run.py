# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""What became of the changes of one run (schema torchtune-sys/run/1), and the plan before it (torchtune-sys/plan/1)."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

from ansible_collections.torchtune.sys.plugins.module_utils import tool

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


REBOOTED = "host rebooted by Ansible for "
"""How the role's note of a reboot begins (tasks/reboot.yml); then what waited for it."""


def rebooted(found_tool, wanted):
    """Of what waits for a reboot, that for which the host was rebooted already since it was made: once more would be of no use.

    None of it where the journals may not be read.
    """
    try:
        history = found_tool.ask(["history", "--format", "json"], HISTORY, (0,)).document if wanted else dict(runs=[])
    except tool.Unanswered:
        return []
    found = []
    since = [entry for entry in history["runs"] if entry["state"] != "undone"]
    for one in wanted:
        made = [number for number, entry in enumerate(since) if one in entry["changes"]]
        later = since[made[-1] :] if made else since
        if any(REBOOTED + one in entry["elsewhere"] for entry in later):
            found.append(one)
    return found


def diff(document):
    """Before and after of each file and of each running value that a dry run names."""
    found = []
    for one in document["diff"]:
        found.append(dict(before_header=one["path"], after_header=one["path"], before=one["before"] or "", after=one["after"]))
    return found
