#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""What to install on a host."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_install_info
short_description: Say what to install on a training host, in order
version_added: "0.1.0"
description:
  - Runs C(torchtune-sys generate install) on the host, which tells driver, fabric manager, Python and torch as typed steps,
    or the reason why one cannot be had.
  - Changes nothing. The role's tasks_from install carries the steps out.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
extends_documentation_fragment:
  - torchtune.sys.tool
  - torchtune.sys.installing
attributes:
  check_mode:
    description: Runs as usual.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
"""

EXAMPLES = r"""
- name: Ask what this host needs
  torchtune.sys.torchtune_install_info:
    venv: /opt/torch
  register: wanted
"""

RETURN = r"""
steps:
  description:
    - What to do, in order, each with its typed actions.
    - C(wanted) is false for what is of use only to some, and was not asked for by O(with).
  returned: when the tool answered
  type: list
  elements: dict
rebooted:
  description: Titles of steps for which the role rebooted the host already, and which are there again. Only root is told.
  returned: when the tool answered
  type: list
  elements: str
refused:
  description: What cannot be had on this host, and why.
  returned: when the tool answered
  type: list
  elements: dict
identity:
  description: The host's machine id and the id of its start.
  returned: when the tool answered
  type: str
notes:
  description: What is there already, and what could not be seen.
  returned: when the tool answered
  type: list
  elements: str
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

from ansible_collections.torchtune.sys.plugins.module_utils import installing, options, run, tool

SCHEMA = "torchtune-sys/install/1"


def main():
    spec = dict(tool.TOOL, **options.INSTALLING_SPEC)
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    words = ["generate", "install", "--format", "json"] + tool.words_of(options.INSTALLING, module.params)
    try:
        host = tool.Tool(module)
        answer = host.ask(words, SCHEMA, (0, 1))
    except tool.Unanswered as error:
        tool.fail(module, error)
    found = answer.document["install"]
    extras = module.params["with"] or []
    steps = [dict(installing.resolved(step), wanted=not step.get("optional") or step["key"] in extras) for step in found["steps"]]
    module.exit_json(
        changed=False,
        status=answer.status,
        steps=steps,
        rebooted=run.rebooted(host, [step["title"] for step in found["steps"] if step["reboot"]]),
        refused=found["refused"],
        notes=found["notes"],
        identity=tool.identity(),
    )


if __name__ == "__main__":
    main()
