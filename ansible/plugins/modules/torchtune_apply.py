#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Change a host as planned."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_apply
short_description: Change a training host to cure what a check finds
version_added: "0.1.0"
description:
  - Runs C(torchtune-sys apply) on the host. What was there before is written to a journal and synced before the first change,
    every value is read back, and the same rules judge again at the end. M(torchtune.sys.torchtune_undo) takes a run back.
  - Makes the changes that disturb nobody, unless O(unsafe) or O(force) is given. Nothing is restarted.
  - A run that was cut off (a lost connection, a power cut) is taken back first, unless O(recover=false).
  - What somebody else owns (tuned, a container's host, an image) is refused, and a warning. What cannot be written (a read-only mount,
    an immutable file, a full disk) fails the task; the rest is made.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
extends_documentation_fragment:
  - torchtune.sys.tool
  - torchtune.sys.judging
options:
  only:
    description: Make only the changes that these rules ask for.
    type: list
    elements: str
  unsafe:
    description: Also make what needs a decision (kernel arguments, services).
    type: bool
    default: false
  force:
    description: Also make what disturbs the processes that run on the GPUs now.
    type: bool
    default: false
  wait:
    description: Seconds to wait for another run on the host to end.
    type: float
    default: 60
  recover:
    description: Take back a run that was cut off before this one is made.
    type: bool
    default: true
attributes:
  check_mode:
    description: Tells what would be changed.
    support: full
  diff_mode:
    description: Shows files and running values before and after.
    support: full
seealso:
  - module: torchtune.sys.torchtune_undo
"""

EXAMPLES = r"""
- name: Make the safe changes
  torchtune.sys.torchtune_apply:
  become: true
  register: applied

- name: Only two rules, kernel arguments included
  torchtune.sys.torchtune_apply:
    only: [numa-balancing-on, iommu-not-passthrough]
    unsafe: true
  become: true
"""

RETURN = r"""
run:
  description: Number of the run, for M(torchtune.sys.torchtune_undo); null where nothing was changed.
  returned: when the tool answered
  type: int
  sample: 3
changes:
  description: Each setting with its key, rule, state, what was seen, what is wanted, and what it needs.
  returned: when the tool answered
  type: list
  elements: dict
waits:
  description:
    - Keys of what takes effect only after a login, the restart of a service, a reboot, or the restart of a job.
    - What was made by earlier runs is included.
  returned: when the tool answered
  type: dict
  sample: {login: [memlock], service: [], reboot: [], job: []}
rebooted:
  description:
    - Keys of what waits for a reboot, and titles of steps that end with one, for which the host was rebooted already since they were made.
    - The role does not reboot for them again.
  returned: when the tool answered
  type: list
  elements: str
lost_at_boot:
  description: What is cured now and will be lost at the next boot, since something else sets it.
  returned: when the tool answered
  type: list
  elements: dict
refused:
  description: What is not changed since somebody else owns it.
  returned: when the tool answered
  type: list
  elements: dict
left:
  description: What was left as it is.
  returned: when the tool answered
  type: list
  elements: dict
failed_changes:
  description: What could not be made, or was taken back; or was made, and the rules find the same as before, or could not be checked again.
  returned: when the tool answered
  type: list
  elements: dict
disrupts:
  description: Keys of the changes that could end or stall a running job.
  returned: in check mode and with diff
  type: list
  elements: str
install:
  description: Steps of C(generate install) that findings ask for, with their typed actions; none is taken.
  returned: in check mode and with diff
  type: list
  elements: dict
identity:
  description: The host's machine id and the id of its start.
  returned: when the tool answered
  type: str
recovered:
  description: Numbers of runs that had been cut off, and were taken back first.
  returned: when the tool answered
  type: list
  elements: int
why:
  description: What kept the tool from answering.
  returned: when it did not answer
  type: str
  sample: refused
status:
  description: Exit status of the tool.
  returned: always
  type: int
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchtune.sys.plugins.module_utils import installing, run, tool

UNREAD = 3
"""The tool's exit status where facts that decide the changes could not be read."""
ATTEMPTS = 3
"""Another controller may change the host between our look and our turn."""


def main():
    own = dict(
        only=dict(type="list", elements="str"),
        unsafe=dict(type="bool", default=False),
        force=dict(type="bool", default=False),
        wait=dict(type="float", default=60),
        recover=dict(type="bool", default=True),
    )
    module = AnsibleModule(argument_spec=tool.judging_spec(**own), supports_check_mode=True)
    result = dict(changed=False, recovered=[], disrupts=[], install=[], rebooted=[], identity=tool.identity())
    try:
        found = tool.Tool(module)
        if module.check_mode or module._diff:
            result.update(_planned(module, found))
        if not module.check_mode:
            result.update(_applied(module, found, result["recovered"]))
    except tool.Unanswered as error:
        tool.fail(module, error, recovered=result["recovered"])
    titles = [step["title"] for step in result["install"] if step["reboot"]]
    result["rebooted"] = run.rebooted(found, result["waits"]["reboot"] + titles)
    _leave(module, result)


def _words(module, *more):
    params = module.params
    words = ["apply", "--format", "json", "--wait", "%g" % params["wait"]] + list(more)
    for rule in params["only"] or []:
        words += ["--only", rule]
    words += [flag for flag in ("--unsafe", "--force") if params[flag[2:]]]
    return words + tool.judging_words(module)


def _planned(module, found):
    """What would be changed, without changing it: which settings the dry run says, how they look the plan."""
    answer = found.ask(_words(module, "--dry-run"), run.SCHEMA, (0, 1, UNREAD, 5))
    plan = found.ask(["plan", "--format", "json"] + tool.judging_words(module), run.PLAN, (0, 1, 3)).document["plan"]
    outcomes = answer.document["changes"]
    keys = [one["key"] for one in outcomes if one["state"] == "left" and "--dry-run" in one.get("detail", "")]
    changes = [run.planned(change) for change in plan["changes"] if change["key"] in keys]
    result = dict(status=answer.status, said=answer.said, run=None, changes=changes, changed=bool(changes))
    result["waits"] = run.waiting(changes + [run.planned(change) for change in plan["waiting"]])
    result["refused"] = run.having(outcomes, "refused")
    result["install"] = [installing.resolved(one["step"]) for one in plan["install"]]
    result["disrupts"] = [change["key"] for change in plan["changes"] if change["disrupts"]]
    if module._diff:
        result["diff"] = run.diff(answer.document)
    return result


def _applied(module, found, recovered):
    """Change the host. A run that was cut off is taken back first; another controller's turn between our look and ours is looked at again."""
    for attempt in range(ATTEMPTS):
        try:
            answer = found.ask(_words(module, "--yes"), run.SCHEMA, (0, 1, UNREAD, 5))
            break
        except tool.Unanswered as error:
            if error.status != 1 or attempt + 1 == ATTEMPTS or not module.params["recover"]:
                raise
            recovered.extend(_taken_back(found))
    changes = answer.document["changes"]
    return dict(
        status=answer.status,
        said=answer.said,
        run=answer.document["run"],
        changes=changes,
        changed=bool(run.having(changes, *run.MADE)) or bool(recovered),
        waits=run.waiting([one for one in changes if one["state"] == "waits" or one["made_already"]]),
        lost_at_boot=run.having(changes, "lost-at-boot"),
        refused=run.having(changes, "refused"),
        left=run.having(changes, "left"),
        failed_changes=run.having(changes, "failed"),
    )


def _taken_back(found):
    """Undo the runs that were cut off; their numbers."""
    history = found.ask(["history", "--format", "json"], run.HISTORY, (0,)).document
    numbers = [one["run"] for one in reversed(history["runs"]) if one["state"] == "interrupted"]
    for number in numbers:
        found.ask(["undo", "--format", "json", "--yes", str(number)], run.SCHEMA, (0, 1))
    return numbers


def _leave(module, result):
    said = result.pop("said")
    for number in result["recovered"]:
        module.warn("run %d had been cut off; it was taken back first" % number)
    if result["rebooted"]:
        module.warn("the host was rebooted already for what still waits for it: %s" % ", ".join(result["rebooted"]))
    for one in result.get("lost_at_boot", ()):
        module.warn("cured now, lost at the next boot: %s (%s)" % (one["key"], one.get("detail", "")))
    for one in result.get("refused", ()):
        if not one.get("unwritable"):
            module.warn("refused: %s (%s)" % (one["key"], one.get("detail", "")))
    closed = [one for one in result.get("refused", ()) if one.get("unwritable")]
    if closed:
        told = ", ".join("%s (%s)" % (one["key"], one["detail"]) for one in closed)
        module.fail_json(msg="not made, since the host does not let it be written: %s" % told, why="unwritable", **result)
    failed = result.get("failed_changes")
    if failed:
        told = ", ".join("%s (%s)" % (one["key"], one.get("detail", "")) for one in failed)
        module.fail_json(msg="could not be made, or to no effect: %s" % told, why="failed", **result)
    if result["status"] == UNREAD:
        unread = "what decides other changes could not be read: %s (a longer timeout may help; ignore leaves out rules)"
        unread %= tool.last_words(said)
        if not result["changed"]:
            module.fail_json(msg=unread, why="unread", **result)
        module.warn(unread)  # what follows the changes that were made (a restart of services, a reboot) must come
    module.exit_json(**result)


if __name__ == "__main__":
    main()
