"""``torchtune-sys generate kubernetes``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give
from torchtune_sys.cli.watch import PREFLIGHT_BUDGETS_S
from torchtune_sys.errors import UserError
from torchtune_sys.model.steering import steers

PIECES = ("job", "jobset", "daemonset")
_JOBS = ("job", "jobset")
_USED_BY = {
    **dict.fromkeys(("nodes", "shm", "level", "secret", "fail_closed"), _JOBS),
    **dict.fromkeys(("every", "runtime_class", "act", "max_tainted"), ("daemonset",)),
}
"""Option → the pieces that use it, if not all do."""
_WITH_ACT = {"max_tainted": ("daemonset --act",)}


@shared.command(
    "kubernetes",
    common=("--image", "--nodes", "--gpus", "--level", "--output"),
    epilog="""\b
Examples:
  torchtune-sys generate kubernetes job --image registry/train:1 --nodes 4 --gpus 8
  torchtune-sys generate kubernetes job --image registry/train:1 --nodes 4 -- python train.py
  torchtune-sys generate kubernetes jobset --image registry/train:1 --nodes 4
  torchtune-sys generate kubernetes daemonset --image registry/train:1 --act

\b
job        a headless Service and an Indexed Job: an init container tests the
           pods together, and they train only if all nodes are good
jobset     the same as a JobSet
daemonset  checks each node at level fast and prints patches for its condition
           and taint; with --act it applies them, to at most --max-tainted
           nodes at once

\b
Only no-go keeps a pod from starting. If the tool is missing, broken or cannot
judge, the pod starts (unless --fail-closed is given). Not tested in a live
cluster; docs/kubernetes.md says what was tested.
""",
)
@click.argument("piece", type=click.Choice(PIECES), metavar="PIECE")
@click.argument("train", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--image", required=True, metavar="IMAGE", help="Image that contains torchtune-sys and your Python with torch.")
@click.option("--name", metavar="NAME", help="Name of the objects. [training; of the DaemonSet torchtune-sys]")
@click.option("--namespace", metavar="NAME", help="Namespace of the objects. [kubectl's; of the DaemonSet default]")
@click.option("--nodes", type=shared.COUNT, default=2, metavar="N", help="Pods of the job, one per node. [2]")
@click.option("--gpus", type=click.IntRange(min=0), default=0, metavar="N", help="NVIDIA GPUs per pod. [0]")
@click.option("--shm", default="8Gi", metavar="SIZE", help="Size limit of /dev/shm in a pod. [8Gi]")
@click.option(
    "--level", type=click.Choice(tuple(PREFLIGHT_BUDGETS_S)), default="standard", help="Level of the job's pre-flight. [standard]"
)
@click.option("--policy", metavar="FILE", help="Path of the policy file in the image.")
@click.option(
    "--budget",
    type=float,
    callback=shared.seconds(1),
    metavar="S",
    help="Time limit of one pre-flight, in seconds. [15; at level standard 60]",
)
@click.option(
    "--secret", default="", metavar="NAME", help='Kubernetes Secret whose key "secret" is the secret that the nodes share.'
)
@click.option(
    "--every", type=click.IntRange(min=10), default=300, metavar="S", help="DaemonSet: seconds between two checks. [300]"
)
@click.option("--runtime-class", default="", metavar="NAME", help="DaemonSet: runtime class that gives access to GPUs.")
@click.option("--act", is_flag=True, help="DaemonSet: set the node's condition and taint; adds the RBAC rights for it.")
@shared.max_tainted_option
@click.option("--fail-closed", is_flag=True, help="Do not start a pod whose pre-flight could not judge.")
@shared.output_option
def command(piece: str, output: str | None, **asked: Any) -> int:
    """Print manifests that run the pre-flight in a Kubernetes cluster.

    PIECE: job, jobset or daemonset.
    """
    from torchtune_sys.render.generate import kubernetes

    shared.refuse_without_effect(piece, _USED_BY if asked["act"] else {**_USED_BY, **_WITH_ACT}, harmless=("nodes", "shm"))
    is_daemon = piece == "daemonset"
    asked["name"] = asked["name"] or ("torchtune-sys" if is_daemon else "training")
    asked["namespace"] = asked["namespace"] or ("default" if is_daemon else "")
    manifest = kubernetes.Manifest(**asked)
    _must_be_named(manifest.name, manifest.namespace, manifest.nodes)
    _must_be_accepted(manifest.image, manifest.secret, manifest.runtime_class)
    _must_be_text(manifest.policy or "", manifest.train)
    if is_daemon and manifest.train:
        raise UserError("the DaemonSet starts no training", "generate kubernetes job -- COMMAND…")
    if not re.fullmatch(r"[1-9][0-9]{0,8}(Ki|Mi|Gi|Ti)?", manifest.shm):
        raise UserError(f"--shm {manifest.shm}: is not a size", "a number with Mi or Gi: 8Gi")
    give(kubernetes.PIECES[piece](manifest), output)
    return 0


def _must_be_named(name: str, namespace: str, nodes: int) -> None:
    """Check the names from which pod names are built; a host name has at most 63 characters. Raises UserError."""
    room = 63 - len(f"-nodes-0-{nodes}")
    for word, option, most in ((name, "--name", room), (namespace, "--namespace", 63)):
        if word and (not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", word) or len(word) > most):
            raise UserError(
                f"{option} {word}: is not a valid name",
                f"lowercase letters, digits and -, at most {most}, starting with a letter",
            )


def _must_be_accepted(image: str, secret: str, runtime_class: str) -> None:
    """Raise UserError for what the cluster would refuse only when a pod starts, or never say why none does."""
    if not re.fullmatch(r"[\w][\w.:/@+-]*", image, re.ASCII):
        raise UserError(f"--image {image!r}: is not an image reference", "a reference without blanks: registry.example/train:1")
    for word, option in ((secret, "--secret"), (runtime_class, "--runtime-class")):
        if word and (len(word) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", word)):
            raise UserError(f"{option} {word}: is not a valid name", "lowercase letters, digits, - and .")


def _must_be_text(policy: str, train: Sequence[str]) -> None:
    """Raise UserError for what YAML cannot hold: control characters in the script, where nothing is escaped; bytes that are no text."""
    if "\n" in policy or steers(policy):
        raise UserError(f"--policy {policy!r}: is not a path that a manifest can hold", "a path without control characters")
    for word in train:
        if any(0xD800 <= ord(sign) <= 0xDFFF for sign in word):
            raise UserError(f"{word!r}: is not UTF-8, as a manifest is", "words in UTF-8")
