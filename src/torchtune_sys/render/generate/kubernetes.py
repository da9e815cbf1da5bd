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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, each field under the name that its option has; the templates have them under the same names."""

    name: str
    namespace: str
    image: str
    nodes: int
    gpus: int
    shm: str
    level: str
    policy: str | None
    budget: float | None
    train: tuple[str, ...]
    secret: str
    fail_closed: bool
    act: bool
    max_tainted: str
    every: int
    runtime_class: str

    def preflight_options(self) -> list[str]:
        """Return the options of every pre-flight."""
        words = ["--policy", self.policy] if self.policy is not None else []
        return words if self.budget is None else [*words, "--budget", f"{self.budget:g}"]


def job(manifest: Manifest) -> str:
    """Return a headless service and an Indexed Job."""
    return _rendered("job", manifest, subdomain=manifest.name)


def jobset(manifest: Manifest) -> str:
    """Return a JobSet of one job."""
    return _rendered("jobset", manifest, subdomain="")


def daemonset(manifest: Manifest) -> str:
    """Return a daemon on each node; with the rights that it needs, where it is to act."""
    values = {**_values(manifest), "taint": TAINT}
    script = _template("watch.sh").render(**values, options=_words(manifest.preflight_options()))
    return _template("daemonset.yaml").render(**values, script=script.rstrip("\n"))


PIECES = {"job": job, "jobset": jobset, "daemonset": daemonset}


def _rendered(piece: str, manifest: Manifest, subdomain: str) -> str:
    first = f"{manifest.name}-{_REPLICATED}-0-0" if piece == "jobset" else f"{manifest.name}-0"
    master = f"{first}.{manifest.name}"
    options = ["--level", manifest.level, *manifest.preflight_options(), "--meet-within", f"{MEETING_S}"]
    if manifest.level == "fast":
        options += ["--nnodes", f"{manifest.nodes}", "--rdzv-endpoint", f"{master}:{PORT}", "--rdzv-id", manifest.name]
    script = _template("preflight.sh").render(options=_words(options), fail_closed=manifest.fail_closed)
    train = manifest.train or _torchrun(manifest, master)
    values = {**_values(manifest), "master": master, "subdomain": subdomain, "train": train, "script": script.rstrip("\n")}
    pod = _template("pod.yaml").render(**values)
    body = _template("body.yaml").render(**values, pod=pod.strip("\n"))
    return _without_blank_lines(_template(f"{piece}.yaml").render(**values, body=body.strip("\n")))


def _without_blank_lines(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line.strip())


def _torchrun(manifest: Manifest, master: str) -> tuple[str, ...]:
    """Return torchrun's words: the controller sets JOB_COMPLETION_INDEX; kubelet puts it into the command."""
    words = (
        "torchrun",
        f"--nnodes={manifest.nodes}",
        f"--nproc-per-node={manifest.gpus or 1}",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
    )
    return (*words, f"--master-addr={master}", f"--master-port={PORT}", "train.py")


def _values(manifest: Manifest) -> dict[str, object]:
    return {**msgspec.structs.asdict(manifest), "version": __version__, "port": PORT}


def _words(options: Sequence[str]) -> str:
    return "".join(f" {shlex.quote(word)}" for word in options)


def _template(name: str) -> Template:
    from torchtune_sys.render.templates import environment

    return environment({"quote": _quoted}).get_template(f"kubernetes/{name}.j2")


def _quoted(text: str) -> str:
    r"""Return a string of YAML: JSON's, but that JSON writes what is beyond U+FFFF in two halves, of which each is refused in YAML.

    >>> print(_quoted("a\n\U0001f600"))
    "a\n\U0001f600"
    """
    return '"' + "".join(f"\\U{ord(sign):08x}" if ord(sign) > 0xFFFF else json.dumps(sign)[1:-1] for sign in text) + '"'
