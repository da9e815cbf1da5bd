"""What brings the pre-flight into a Kubernetes cluster: a job whose pods meet before they train, and a daemon that judges each node.

Source: kubernetes.io/docs (Indexed Job: JOB_COMPLETION_INDEX, host names NAME-INDEX below a headless service; terminationMessagePath:
4096 bytes; RBAC), jobset.sigs.k8s.io (host names JOBSET-JOB-INDEX-POD.SUBDOMAIN).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from torchtune_sys import __version__
from torchtune_sys.render.node_patch import TAINT

if TYPE_CHECKING:
    from jinja2 import Template

PORT = 29500
MEETING_S = 600
"""Pods start minutes apart: an image is pulled on one node and lies on another."""
_REPLICATED = "nodes"
"""The one job of a JobSet, in its pods' host names."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    name: str
    namespace: str = "default"
    image: str
    nodes: int
    gpus: int = 0
    shm: str
    level: str = "standard"
    options: tuple[str, ...] = ()
    """Of ``preflight``."""
    train: tuple[str, ...] = ()
    secret: str = ""
    fail_closed: bool = False
    act: bool = False
    every_s: int = 300
    runtime_class: str = ""


def job(wanted: Wanted) -> str:
    """A headless service and an Indexed Job."""
    return _rendered("job", wanted, subdomain=wanted.name)


def jobset(wanted: Wanted) -> str:
    """A JobSet of one job."""
    return _rendered("jobset", wanted, subdomain="")


def daemonset(wanted: Wanted) -> str:
    """A daemon on each node; with the rights that it needs, where it is to act."""
    text = _template("watch.sh").render(options=_words(wanted.options), act=wanted.act, every=wanted.every_s)
    return _template("daemonset.yaml").render(**_common(wanted), script=text.rstrip("\n"), every=wanted.every_s, taint=TAINT)


PIECES = {"job": job, "jobset": jobset, "daemonset": daemonset}


def _rendered(piece: str, wanted: Wanted, subdomain: str) -> str:
    first = f"{wanted.name}-{_REPLICATED}-0-0" if piece == "jobset" else f"{wanted.name}-0"
    master = f"{first}.{wanted.name}"
    options = [*wanted.options, "--meet-within", f"{MEETING_S}"]
    if wanted.level == "fast":
        options += ["--nnodes", f"{wanted.nodes}", "--rdzv-endpoint", f"{master}:{PORT}", "--rdzv-id", wanted.name]
    script = _template("preflight.sh").render(options=_words(options), fail_closed=wanted.fail_closed)
    train = wanted.train or _torchrun(wanted, master)
    values = {**_common(wanted), "master": master, "subdomain": subdomain, "train": train, "script": script.rstrip("\n")}
    pod = _template("pod.yaml").render(**values)
    body = _template("body.yaml").render(**values, pod=pod.strip("\n"))
    return _without_blank_lines(_template(f"{piece}.yaml").render(**values, body=body.strip("\n")))


def _without_blank_lines(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line.strip())


def _torchrun(wanted: Wanted, master: str) -> tuple[str, ...]:
    """The controller sets JOB_COMPLETION_INDEX; kubelet puts it into the command."""
    words = (
        "torchrun",
        f"--nnodes={wanted.nodes}",
        f"--nproc-per-node={wanted.gpus or 1}",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
    )
    return (*words, f"--master-addr={master}", f"--master-port={PORT}", "train.py")


def _common(wanted: Wanted) -> dict[str, object]:
    return {
        "version": __version__,
        "name": wanted.name,
        "namespace": wanted.namespace,
        "image": wanted.image,
        "nodes": wanted.nodes,
        "gpus": wanted.gpus,
        "shm": wanted.shm,
        "port": PORT,
        "secret": wanted.secret,
        "fail_closed": wanted.fail_closed,
        "act": wanted.act,
        "runtime_class": wanted.runtime_class,
    }


def _words(options: Sequence[str]) -> str:
    return "".join(f" {shlex.quote(word)}" for word in options)


def _template(name: str) -> Template:
    from torchtune_sys.render.templates import environment

    return environment({"quote": json.dumps}).get_template(f"kubernetes/{name}.j2")
