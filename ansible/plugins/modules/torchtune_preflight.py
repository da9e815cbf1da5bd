#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Judge all hosts of a job together."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_preflight
short_description: Say whether a job may start on all hosts together, where no scheduler starts it
version_added: "0.1.0"
description:
  - Runs C(torchtune-sys preflight --level standard) on one node of a job. The nodes find each other at the first one's address, or at another's
    where that one is bad, and test the ways between them, what they have alike, and a training step in common.
  - All nodes must be at it at once. So it is started with C(async) and C(poll=0) on every host, and waited for by M(ansible.builtin.async_status),
    as the role's tasks_from preflight does.
  - Fails on a host that is to blame, or that could not be checked. On the others RV(job) says what became of all.
  - Loads the hosts as long as it runs.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
extends_documentation_fragment:
  - torchtune.sys.tool
options:
  nodes:
    description: Addresses of all nodes, at which the others reach them, in the same order on each of them.
    type: list
    elements: str
    required: true
  names:
    description: What the nodes are called in the result, in the same order. If omitted, their addresses.
    type: list
    elements: str
  node:
    description: Which of them this is, from 0.
    type: int
    required: true
  secret:
    description: The same words on all nodes. Who does not know them cannot take part.
    type: str
    required: true
  nproc_per_node:
    description: Ranks on each node; on GPU hosts one for each GPU.
    type: int
    default: 1
  port:
    description: Where the nodes meet; the three ports behind it are tried, too.
    type: int
    default: 29500
  python:
    description: The interpreter you train with. If omitted, the python3 of the active environment.
    type: path
  policy:
    description: A file on the host that says what is fatal, a warning or ignored (TOML).
    type: path
  site_checks:
    description: A directory on the host with programs that judge it, too.
    type: path
  budget:
    description: Seconds that it may take. Half of them, and 20 at most, the nodes wait for each other.
    type: float
    default: 120
  delay:
    description: Seconds to wait first, so that all nodes begin together however long it takes to reach them.
    type: float
    default: 0
attributes:
  check_mode:
    description: Nothing is run, since it would load the host.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
seealso:
  - module: torchtune.sys.torchtune_smoke
"""

EXAMPLES = r"""
- name: Start on every host
  torchtune.sys.torchtune_preflight:
    nodes: [10.0.0.1, 10.0.0.2]
    node: "{{ ansible_play_hosts_all.index(inventory_hostname) }}"
    secret: "{{ vault_preflight_secret }}"
    python: /home/alice/train/.venv/bin/python3
    nproc_per_node: 8
  async: 300
  poll: 0
  register: begun

- name: Wait for the verdict
  ansible.builtin.async_status:
    jid: "{{ begun.ansible_job_id }}"
  register: preflight
  until: preflight is finished
  retries: 150
  delay: 2
"""

RETURN = r"""
verdict:
  description: Of this host, V(go), V(no-go) or V(unknown).
  returned: when it ran
  type: str
causes:
  description: What was found on this host, with cause, blame, weight and what was seen, the fatal ones first.
  returned: when it ran
  type: list
  elements: dict
job:
  description: The verdict of all nodes together.
  returned: when it ran
  type: str
bad:
  description: Names of the nodes that are to blame.
  returned: when it ran
  type: list
  elements: str
absent:
  description: Names of the nodes that never came.
  returned: when it ran
  type: list
  elements: str
links:
  description: Ways between two nodes that are to blame, with cause and what was seen.
  returned: when it ran
  type: list
  elements: dict
headline:
  description: One line about this host and the job.
  returned: when it ran
  type: str
why:
  description: What kept the tool from answering, or V(no-go).
  returned: when the task failed
  type: str
  sample: refused
status:
  description: Exit status of the tool.
  returned: always
  type: int
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchtune.sys.plugins.module_utils import ranks, tool

SCHEMA = "torchtune-sys/preflight/1"


def main():
    spec = dict(
        tool.TOOL,
        nodes=dict(type="list", elements="str", required=True),
        names=dict(type="list", elements="str"),
        node=dict(type="int", required=True),
        secret=dict(type="str", required=True, no_log=True),
        nproc_per_node=dict(type="int", default=1),
        port=dict(type="int", default=29500),
        python=dict(type="path"),
        policy=dict(type="path"),
        site_checks=dict(type="path"),
        budget=dict(type="float", default=120),
        delay=dict(type="float", default=0),
    )
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    _refuse_nonsense(module)
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="nothing is tried together in check mode")
    try:
        found = tool.Tool(module)
        words = _words(module)
        time.sleep(max(module.params["delay"], 0))
        places = ranks.places(module.params)
        module.run_command_environ_update = places[0]
        with ranks.Beside(found.argv + words, places[1:]):
            answer = found.ask(words, SCHEMA, (0, 1, 3))
    except tool.Unanswered as error:
        tool.fail(module, error)
    _leave(module, answer)


def _refuse_nonsense(module):
    params = module.params
    nodes, names = params["nodes"], params["names"]
    if len(nodes) < 2 or not 0 <= params["node"] < len(nodes) or params["nproc_per_node"] < 1:
        words = "a job has two nodes or more, each with a rank, and this is one of them: node %d of %d, %d ranks"
        module.fail_json(msg=words % (params["node"], len(nodes), params["nproc_per_node"]))
    if names and len(names) != len(nodes):
        module.fail_json(msg="there are %d names for %d nodes" % (len(names), len(nodes)))


def _words(module):
    params = module.params
    hostfile = os.path.join(module.tmpdir, "torchtune-sys-hosts")
    with open(hostfile, "w") as file:
        file.write("".join("%s\n" % one for one in params["nodes"]))
    words = ["preflight", "--level", "standard", "--format", "json", "--hostfile", hostfile, "--budget", "%g" % params["budget"]]
    for name in ("python", "policy", "site_checks"):
        if params[name]:
            words += ["--" + name.replace("_", "-"), params[name]]
    return words


def _leave(module, answer):
    params, document = module.params, answer.document
    names = ranks.called(params)
    called = {address: names[place] for place, address in enumerate(params["nodes"])}  # one that told no name of its own
    judged = {called.get(one["node"], one["node"]): one for one in document["nodes"]}
    own = judged.get(names[params["node"]]) or dict(verdict="unknown", causes=[])
    bad = [name for name in names if judged.get(name, {}).get("verdict") == "no-go"]
    absent = [called.get(name, name) for name in document["absent"]]
    links = [
        dict(one, to=called.get(one["to"], one["to"]), **{"from": called.get(one["from"], one["from"])})
        for one in document["links"]
    ]
    result = dict(
        changed=False,
        status=answer.status,
        verdict=own["verdict"],
        causes=own["causes"],
        job=document["verdict"],
        bad=bad,
        absent=absent,
        links=links,
        headline=_headline(own, document["verdict"], bad, absent, links),
    )
    if own["verdict"] != "go":
        module.fail_json(msg=result["headline"], why=own["verdict"], **result)
    module.exit_json(**result)


def _headline(own, job, bad, absent, links):
    told = [one for one in own["causes"] if one["weight"] != "warning"]
    words = own["verdict"] + "".join(": %s: %s" % (one["cause"], one["seen"]) for one in told[:1])
    others = bad + [name + " (never came)" for name in absent if name not in bad]
    others += ["the way from %s to %s (%s)" % (one["from"], one["to"], one["cause"]) for one in links]
    return "%s; the job: %s%s" % (words, job, " for " + ", ".join(others) if others else "")


if __name__ == "__main__":
    main()
