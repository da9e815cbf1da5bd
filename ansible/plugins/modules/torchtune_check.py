#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Judge a host."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_check
short_description: Say what is wrong with a training host
version_added: "0.1.0"
description:
  - Runs C(torchtune-sys check) on the host and returns what it found. Changes nothing.
  - Limits, environment and the Python that are judged are those of the user that the task runs as. Run it as the user who trains.
  - What could not be checked is reported as such, never as healthy.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
extends_documentation_fragment:
  - torchtune.sys.tool
  - torchtune.sys.judging
options:
  fail_on:
    description:
      - The least severity of a finding that fails the task.
      - Another value than V(never) also fails it where a rule of severity error could not be checked because looking failed.
    type: str
    choices: [error, warning, advice, never]
    default: never
  strict:
    description: Count a rule of severity error as not judged whatever the reason, a missing privilege included.
    type: bool
    default: false
  full:
    description: Also return the tool's whole report (200 kB) as RV(report).
    type: bool
    default: false
  facts:
    description: Also return the facts of the same look (20 kB) as RV(facts), from which M(torchtune.sys.torchtune_report) says what differs between hosts.
    type: bool
    default: false
attributes:
  check_mode:
    description: Runs as usual.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
seealso:
  - module: torchtune.sys.torchtune_apply
"""

EXAMPLES = r"""
- name: Check the host as the training user
  torchtune.sys.torchtune_check:
    python: /home/alice/train/.venv/bin/python3
    nproc_per_node: 8
    data: [/data]
  become: true
  become_user: alice
  register: judged

- name: Stop where training cannot work
  torchtune.sys.torchtune_check:
    fail_on: error
    rules:
      swappiness-high: {max: 20}
      thp-never: false
"""

RETURN = r"""
headline:
  description: One line about the host, and as whom it was judged.
  returned: when the tool answered
  type: str
  sample: 1 error, 2 warnings (judged as alice, 80 passed, 3 could not be checked)
can_train:
  description: What training would run on here, V(gpu), V(cpu), V(no) or V(unknown).
  returned: when the tool answered
  type: str
judged:
  description: False where a rule of severity error got no verdict because looking failed.
  returned: when the tool answered
  type: bool
user:
  description: Whose limits, environment and Python were judged.
  returned: when the tool answered
  type: str
findings:
  description: What is wrong, the worst first.
  returned: when the tool answered
  type: list
  elements: dict
  contains:
    rule: {description: Id of the rule., type: str}
    family: {description: Family of the rule., type: str}
    severity: {description: 'V(error), V(warning) or V(advice).', type: str}
    cause: {description: Slug of the known cause., type: str}
    title: {description: The defect in one line., type: str}
    evidence: {description: 'Subject, what was seen and what is wanted.', type: list, elements: dict}
    fix: {description: What to do about it., type: list, elements: str}
unknown:
  description: What could not be checked, and why.
  returned: when the tool answered
  type: list
  elements: dict
counts:
  description: Number of findings by severity.
  returned: when the tool answered
  type: dict
  sample: {error: 1, warning: 2, advice: 0}
passed:
  description: Number of rules that passed.
  returned: when the tool answered
  type: int
not_applicable:
  description: Number of rules that have nothing to judge here.
  returned: when the tool answered
  type: int
proof:
  description: What is known of the last smoke test that passed.
  returned: when the tool answered
  type: str
version:
  description: Version of the tool on the host.
  returned: when the tool answered
  type: str
report:
  description: The whole document, schema torchtune-sys/report/1.
  returned: with O(full=true)
  type: dict
facts:
  description: What the rules judged, in the form that C(torchtune-sys compare) reads, schema torchtune-sys/facts/1.
  returned: with O(facts=true)
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

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchtune.sys.plugins.module_utils import report, tool


def main():
    own = dict(
        fail_on=dict(type="str", choices=["error", "warning", "advice", "never"], default="never"),
        strict=dict(type="bool", default=False),
        full=dict(type="bool", default=False),
        facts=dict(type="bool", default=False),
    )
    module = AnsibleModule(argument_spec=tool.judging_spec(**own), supports_check_mode=True)
    words = ["check", "--format", "json", "--fail-on", "never"] + (["--strict"] if module.params["strict"] else [])
    facts = os.path.join(module.tmpdir, "torchtune-sys-facts.json") if module.params["facts"] else ""
    words += ["--facts", facts] if facts else []
    answer = tool.answer(module, words + tool.judging_words(module), report.SCHEMA, (0, 3, 4))
    found = report.brief(answer.document)
    judged = answer.status == 0
    result = dict(
        found,
        changed=False,
        status=answer.status,
        judged=judged,
        counts=report.count(found["findings"]),
        headline=report.headline(found, judged),
    )
    if module.params["full"]:
        result["report"] = answer.document
    if facts:
        result["facts"] = tool.document_of(module, facts, report.FACTS)
    _leave(module, result)


def _leave(module, result):
    limit = module.params["fail_on"]
    if result["status"] == 4:
        names = ", ".join(one["rule"] for one in result["crashed"]) or "a look at the host"
        module.fail_json(msg="internal error of the tool in %s: the rest is not to be trusted" % names, why="internal", **result)
    bad = report.at_least(result["findings"], limit)
    if bad:
        names = ", ".join(one["rule"] for one in bad)
        module.fail_json(msg="%s: %s" % (result["headline"], names), why="findings", **result)
    if limit != "never" and not result["judged"]:
        module.fail_json(msg="a rule of severity error could not be checked: %s" % result["headline"], why="not-judged", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
