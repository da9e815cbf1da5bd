#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Write one report about all hosts of a play (runs as the action plugin of this name)."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_report
short_description: Write one report about all hosts of the play
version_added: "0.1.0"
description:
  - Gathers what M(torchtune.sys.torchtune_check) answered on each host of the play, says it on the terminal,
    and writes it on the controller as Markdown and JSON.
  - Hosts that were not reached, that failed, or that could not be checked are named, with the reason.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
options:
  directory:
    description:
      - Directory on the controller for C(fleet.md), C(fleet.json), C(hosts/NAME.json), C(facts/NAME.json) and, of a pre-flight, C(good_hosts.txt)
        (for C(--limit @good_hosts.txt)). Nothing is written without it.
      - Files of an earlier report are removed where their host is no longer in the inventory, and facts where it returned none this time.
      - Two days' directories of facts are compared by C(torchtune-sys compare --before).
    type: path
  hosts:
    description:
      - The hosts to tell about. If omitted, all of the play, those that were not reached included.
      - In a play of its own, all that were asked in an earlier one.
    type: list
    elements: str
  result:
    description: The variable that the check's result was registered in.
    type: str
    default: torchtune_sys_checked
  failure:
    description: The variable that says what failed before the check, if anything did.
    type: str
    default: torchtune_sys_failure
  applied:
    description: The variable that the result of M(torchtune.sys.torchtune_apply) was registered in, where it was.
    type: str
    default: torchtune_sys_applied
  preflight:
    description: The variable that the result of M(torchtune.sys.torchtune_preflight) was registered in, where it was.
    type: str
    default: torchtune_sys_preflighted
  fail:
    description: Fail where a host was not reached, not judged, or is to blame in a pre-flight.
    type: bool
    default: true
  compare:
    description:
      - Say what differs between the hosts, by C(torchtune-sys compare) on the controller, where M(torchtune.sys.torchtune_check) was asked for facts.
      - Where the tool does not run there, the report says so.
    type: bool
    default: true
  tool:
    description: The tool on the controller, for O(compare). If omitted, or no file, C(torchtune-sys) in PATH, or the file that the collection brings.
    type: path
attributes:
  action:
    description: Runs on the controller alone.
    support: full
  check_mode:
    description: Tells the same, and writes nothing.
    support: full
  diff_mode:
    description: The report is no state of a host.
    support: none
"""

EXAMPLES = r"""
- name: Check every host
  torchtune.sys.torchtune_check:
  register: torchtune_sys_checked
  ignore_unreachable: true

- name: Write the report
  torchtune.sys.torchtune_report:
    directory: reports
  run_once: true
"""

RETURN = r"""
headline:
  description: One line about all hosts.
  returned: always
  type: str
  sample: "6 hosts: 3 no problem found, 1 with findings, 1 not judged, 1 not reached; training does not work on 1"
summary:
  description: Number of hosts, and of hosts in each state.
  returned: always
  type: dict
not_judged:
  description: The hosts that were not reached, failed, could not be checked, or are to blame in a pre-flight.
  returned: always
  type: list
  elements: str
reasons:
  description: One line about each of them, by host.
  returned: always
  type: dict
  sample: {gpu07: 'not reached: Connection timed out'}
markdown:
  description: Path of the report as Markdown.
  returned: with O(directory)
  type: str
json:
  description: Path of the report as JSON.
  returned: with O(directory)
  type: str
"""
