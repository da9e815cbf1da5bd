#!/usr/bin/python
# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Fail where another user decides what root is about to start."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: torchtune_place
short_description: Fail where another user can change what root is about to start
version_added: "0.1.0"
description:
  - Looks at a path of the host and at each directory and link on the way to it. Fails where one belongs to another user, others may write to it, or a user's
    program answers for it (FUSE); on the way, a directory with the sticky bit (C(/tmp)) is passed. The user whose C(sudo) it is counts as root.
  - Does nothing for whoever is not root, and where nothing is there yet.
author:
  - The torchtune-sys maintainers (@torchtune-sys)
options:
  place:
    description: The path.
    type: path
    required: true
attributes:
  check_mode:
    description: Nothing is changed.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Fail if another user made the environment
  torchtune.sys.torchtune_place:
    place: /opt/torch
  become: true
"""

RETURN = r"""
why:
  description: Why it failed.
  returned: on failure
  type: str
  sample: not-trusted
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchtune.sys.plugins.module_utils import places


def main():
    module = AnsibleModule(argument_spec=dict(place=dict(type="path", required=True)), supports_check_mode=True)
    reason = places.distrust(module.params["place"])
    if reason:
        module.fail_json(msg="nothing at %s is started as root: %s" % (module.params["place"], reason), why="not-trusted")
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
