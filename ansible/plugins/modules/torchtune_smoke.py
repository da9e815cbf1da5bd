#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Prove by training that a host can."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_smoke
short_description: Train a little, to prove that a host can
version_added: "0.1.0"
description:
  - Runs C(torchtune-sys smoke) on the host, which trains two small models on data that it makes, without a network.
  - A stage that fails, or cannot be tried, fails the task. A pass is remembered on the host, and told by M(torchtune.sys.torchtune_check).
  - Takes up to some minutes. Use C(async) and C(poll) where the connection may not last that long.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
extends_documentation_fragment:
  - torchtune.sys.tool
  - torchtune.sys.smoking
attributes:
  check_mode:
    description: Nothing is run, since it would load the host.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
"""

EXAMPLES = r"""
- name: Train for a minute on all GPUs of the host
  torchtune.sys.torchtune_smoke:
    python: /home/alice/train/.venv/bin/python3
  become: true
  become_user: alice

- name: Only what takes seconds
  torchtune.sys.torchtune_smoke:
    level: quick
"""

RETURN = r"""
verdict:
  description: The worst of the stages.
  returned: when it ran
  type: str
  sample: pass
headline:
  description: One line about the run.
  returned: when it ran
  type: str
failed_stages:
  description: The stages that did not pass, with cause, what was seen and what to do.
  returned: when it ran
  type: list
  elements: dict
report:
  description: The whole document, schema torchtune-sys/smoke/1.
  returned: when it ran
  type: dict
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

from ansible_collections.torchtune.sys.plugins.module_utils import options, tool

SCHEMA = "torchtune-sys/smoke/1"


def main():
    spec = dict(tool.TOOL, level=dict(type="str", choices=["quick", "thorough"]), **options.SMOKING_SPEC)
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="nothing is trained in check mode")
    words = ["smoke", "--format", "json"] + tool.words_of(options.SMOKING, module.params)
    if module.params["level"]:
        words.append("--" + module.params["level"])
    _leave(module, tool.answer(module, words, SCHEMA, (0, 1, 3, 4)))


def _leave(module, answer):
    report = answer.document
    bad = [stage for stage in report["stages"] if stage["verdict"] in ("fail", "unknown", "crashed")]
    names = ", ".join(stage["stage"] + (" (%s)" % stage["cause"] if stage["cause"] else "") for stage in bad)
    passed = len([stage for stage in report["stages"] if stage["verdict"] == "pass"])
    headline = "%s: %d stages passed%s" % (report["verdict"], passed, "; not passed: " + names if bad else "")
    result = dict(
        changed=False, status=answer.status, verdict=report["verdict"], headline=headline, failed_stages=bad, report=report
    )
    if answer.status:
        module.fail_json(msg=headline, why={1: "training", 3: "not-judged"}.get(answer.status, "internal"), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
