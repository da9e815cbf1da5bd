#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Enter in the journal what a playbook changed."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_note
short_description: Enter in the host's journal what a playbook changed itself
version_added: "0.1.0"
description:
  - Runs C(torchtune-sys note) on the host. What Ansible's own modules did for a run (packages, restarts, a reboot) is listed by C(torchtune-sys history), and
    named by M(torchtune.sys.torchtune_undo) as not undone.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
extends_documentation_fragment:
  - torchtune.sys.tool
options:
  text:
    description: What was done, one line each. Nothing is entered where there is none.
    type: list
    elements: str
    required: true
  run:
    description: The run that it was done for. If omitted, the last one that is not undone, or one of its own.
    type: int
attributes:
  check_mode:
    description: Nothing is entered.
    support: full
  diff_mode:
    description: The journal is not shown.
    support: none
"""

EXAMPLES = r"""
- name: Install a compiler
  ansible.builtin.package:
    name: gcc
  register: installed

- name: Record it in the journal
  torchtune.sys.torchtune_note:
    text: ["package gcc installed"]
  become: true
  when: installed is changed
"""

RETURN = r"""
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

from ansible_collections.torchtune.sys.plugins.module_utils import tool


def main():
    spec = dict(tool.TOOL, text=dict(type="list", elements="str", required=True), run=dict(type="int"))
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    texts, number = module.params["text"], module.params["run"]
    if module.check_mode or not texts:
        module.exit_json(changed=bool(texts), status=0)
    words = ["note", "--wait", "60"] + (["--run", str(number)] if number else []) + ["--"] + texts
    try:
        said = tool.Tool(module).say(words)
    except tool.Unanswered as error:
        tool.fail(module, error)
    module.exit_json(changed=True, status=0, msg=said)


if __name__ == "__main__":
    main()
