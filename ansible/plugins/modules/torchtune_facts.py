#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Facts about a training host."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_facts
short_description: Gather what training depends on, and what was applied on a host
version_added: "0.1.0"
description:
  - Returns facts of C(torchtune-sys snapshot), and the runs of M(torchtune.sys.torchtune_apply) on the host, as C(ansible_facts.torchtune_sys).
  - A fact that could not be read is a dictionary with the key C($missing), which says why.
  - With O(local=true) also writes what was applied into C(/etc/ansible/facts.d), without times, so that nothing changes while nothing changes.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
extends_documentation_fragment:
  - torchtune.sys.tool
options:
  families:
    description: The families of facts to return; V(all) are about 200 kB.
    type: list
    elements: str
    default: [system, driver, gpu, python]
  python:
    description: The interpreter one trains with.
    type: path
  local:
    description: Write the local fact C(torchtune_sys). Needs root.
    type: bool
    default: false
  local_directory:
    description: Where local facts lie.
    type: path
    default: /etc/ansible/facts.d
attributes:
  check_mode:
    description: Facts are gathered, and no local fact is written.
    support: full
  diff_mode:
    description: Shows the local fact before and after.
    support: full
"""

EXAMPLES = r"""
- name: Gather facts, and leave a local one for later plays
  torchtune.sys.torchtune_facts:
    local: true
  become: true

- name: Use them
  ansible.builtin.debug:
    msg: "{{ ansible_facts.torchtune_sys.runs | length }} runs"
"""

RETURN = r"""
ansible_facts:
  description: Facts to add.
  returned: always
  type: complex
  contains:
    torchtune_sys:
      description: Version of the tool, facts by family, and runs (null where they may not be read).
      type: dict
      returned: always
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

import json
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.text.converters import to_bytes, to_text

from ansible_collections.torchtune.sys.plugins.module_utils import run, tool

SNAPSHOT = "torchtune-sys/snapshot/1"
FILE = "torchtune_sys.fact"


def main():
    spec = dict(
        tool.TOOL,
        families=dict(type="list", elements="str", default=["system", "driver", "gpu", "python"]),
        python=dict(type="path"),
        local=dict(type="bool", default=False),
        local_directory=dict(type="path", default="/etc/ansible/facts.d"),
    )
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    words = ["snapshot", "--format", "json"] + (["--python", module.params["python"]] if module.params["python"] else [])
    try:
        found = tool.Tool(module)
        answer = found.ask(words, SNAPSHOT, (0, 3, 4))
        runs, why = _runs(found)
    except tool.Unanswered as error:
        tool.fail(module, error)
    facts = dict(version=answer.version, facts=_chosen(module, answer.document["facts"]), runs=runs, runs_unknown=why)
    local = _local(module, dict(version=answer.version, runs=runs)) if module.params["local"] else {}
    module.exit_json(ansible_facts=dict(torchtune_sys=facts), status=answer.status, **dict(dict(changed=False), **local))


def _chosen(module, facts):
    asked = module.params["families"]
    if asked == ["all"]:
        return facts
    strange = sorted(set(asked) - set(facts))
    if strange:
        module.fail_json(msg="no such family: %s; there are %s" % (", ".join(strange), ", ".join(sorted(facts))))
    return {name: facts[name] for name in asked}


def _runs(found):
    """What was applied here, without times; None and the reason where the journals may not be read."""
    try:
        answer = found.ask(["history", "--format", "json"], run.HISTORY, (0,))
    except tool.Unanswered as error:
        return None, error.msg
    keys = ("run", "state", "rules", "changes", "left")
    return [{key: one[key] for key in keys} for one in answer.document["runs"]], ""


def _local(module, content):
    """Write the local fact where it differs."""
    if content["runs"] is None:
        module.fail_json(msg="the local fact holds what was applied on this host, which only root may read: use become")
    folder = module.params["local_directory"]
    place = os.path.join(folder, FILE)
    after = json.dumps(content, indent=2, sort_keys=True) + "\n"
    before = _text(place)
    if before == after:
        return dict(changed=False)
    if not module.check_mode:
        if not os.path.isdir(folder):
            os.makedirs(folder, 0o755)
        handle, draft = tempfile.mkstemp(dir=module.tmpdir)
        with os.fdopen(handle, "wb") as file:
            file.write(to_bytes(after))
        os.chmod(draft, 0o644)
        module.atomic_move(draft, place)
    return dict(changed=True, diff=dict(before_header=place, after_header=place, before=before, after=after))


def _text(place):
    try:
        with open(place, "rb") as file:
            return to_text(file.read(), errors="surrogate_or_replace")
    except (IOError, OSError):
        return ""


if __name__ == "__main__":
    main()
