#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Take back what was applied."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_undo
short_description: Take back what torchtune_apply changed
version_added: "0.1.0"
description:
  - Runs C(torchtune-sys undo) on the host, which restores files byte for byte, values and services.
  - What somebody changed since is left as it is, and returned as RV(left).
  - Idempotent, a run that is undone already is left alone.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
extends_documentation_fragment:
  - torchtune.sys.tool
options:
  run:
    description: Number of the run, as M(torchtune.sys.torchtune_apply) returned it.
    type: int
  all:
    description: Every run, the last first.
    type: bool
    default: false
  wait:
    description: Seconds to wait for another run on the host to end.
    type: float
    default: 60
attributes:
  check_mode:
    description: Tells what would be restored.
    support: full
  diff_mode:
    description: Shows running values before and after; of files only that they become what they were.
    support: partial
"""

EXAMPLES = r"""
- name: Take everything back
  torchtune.sys.torchtune_undo:
    all: true
  become: true

- name: Take one run back
  torchtune.sys.torchtune_undo:
    run: "{{ applied.run }}"
  become: true
"""

RETURN = r"""
restored:
  description: What is as it was before.
  returned: when something was undone
  type: list
  elements: dict
left:
  description: What was left as it is, since somebody changed it or since it was not done by torchtune-sys.
  returned: when something was undone
  type: list
  elements: dict
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

from ansible_collections.torchtune.sys.plugins.module_utils import run, tool


def main():
    spec = dict(tool.TOOL, run=dict(type="int"), all=dict(type="bool", default=False), wait=dict(type="float", default=60))
    module = AnsibleModule(
        argument_spec=spec,
        required_one_of=[("run", "all")],
        mutually_exclusive=[("run", "all")],
        supports_check_mode=True,
    )
    params = module.params
    words = ["undo", "--format", "json", "--wait", "%g" % params["wait"]] + (["--all"] if params["all"] else [str(params["run"])])
    words.append("--dry-run" if module.check_mode else "--yes")
    answer = tool.answer(module, words, run.SCHEMA, (0, 1))
    changes = answer.document["changes"]
    restored, left, failed = (run.having(changes, state) for state in ("restored", "left", "failed"))
    result = dict(changed=bool(restored), status=answer.status, restored=restored, left=left, failed_changes=failed)
    if module._diff:
        result["diff"] = [_difference(one) for one in restored]
    for one in left:
        module.warn("not undone: %s (%s)" % (one["key"], one.get("detail") or one["seen"]))
    if failed:
        module.fail_json(msg="not all could be restored: %s" % run.names(failed), why="failed", **result)
    module.exit_json(**result)


def _difference(change):
    before, after = ("%s\n" % change[name] for name in ("seen", "wanted"))
    return dict(before_header=change["key"], after_header=change["key"], before=before, after=after)


if __name__ == "__main__":
    main()
