# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""The ranks of one node of a pre-flight: what each is told of its place, and how those beside the first are started and ended."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

import os
import subprocess

SECRET = "TORCHTUNE_SYS_JOB_SECRET"
NAME = "TORCHTUNE_SYS_NODE"


def called(params):
    """What the nodes are called, in their order."""
    return params["names"] or params["nodes"]


def places(params):
    """The environment of each rank of this node, as any launcher gives it."""
    here = params["nproc_per_node"]
    first = params["node"] * here
    every = {
        "WORLD_SIZE": str(len(params["nodes"]) * here),
        "LOCAL_WORLD_SIZE": str(here),
        "MASTER_ADDR": params["nodes"][0],
        "MASTER_PORT": str(params["port"]),
        SECRET: params["secret"],
        NAME: called(params)[params["node"]],
    }
    return [dict(every, RANK=str(first + local), LOCAL_RANK=str(local)) for local in range(here)]


class Beside(object):
    """The node's other ranks: what they say is the first one's verdict."""

    def __init__(self, argv, environments):
        self.argv = argv
        self.environments = environments
        self.processes = []

    def __enter__(self):
        with open(os.devnull, "r+b") as nothing:
            for one in self.environments:
                process = subprocess.Popen(
                    self.argv, stdin=nothing, stdout=nothing, stderr=nothing, env=dict(os.environ, **one), close_fds=True
                )
                self.processes.append(process)
        return self

    def __exit__(self, *_error):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait()
