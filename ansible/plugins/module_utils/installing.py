# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Steps of an installation as the role takes them."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

import fnmatch
import os


def resolved(step):
    """The step with names of packages for the kernel that runs here."""
    return dict(step, actions=[_for_this_kernel(action) for action in step["actions"]])


def _for_this_kernel(action):
    if action["type"] != "kernel-packages":
        return action
    release = os.uname()[2]
    names = next((names for pattern, names in action["choices"] if fnmatch.fnmatchcase(release, pattern)), [])
    names = [name.replace("$(uname -r)", release) for name in names]
    return dict(type="packages", manager=action["manager"], names=names)
