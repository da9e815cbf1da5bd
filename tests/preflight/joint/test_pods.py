"""The command of a generated pod, in four namespaces, with the environment that an Indexed Job gives to each."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from preflight.joint.agents_here import ran
from preflight.joint.cluster import TOOL, Cluster, cluster
from preflight.joint.faults import FAULTS
from smoke.faults.bench import torch_python

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.long
NODES = 4


def pod(folder: Path, *words: str) -> dict[str, Any]:
    """The pod of a Job of four. This machine's own findings are none of the test's."""
    policy = folder / "policy.toml"
    policy.write_text('warning = ["error"]\nignore = ["no-gpu"]\n')
    argv = [str(TOOL), "generate", "kubernetes", "job", "--image", "x", "--nodes", f"{NODES}", "--policy", str(policy), *words]
    text = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    (job,) = (document for document in yaml.safe_load_all(text) if document["kind"] == "Job")
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def environment(container: dict[str, Any], index: int) -> dict[str, str]:
    """As the controller and the kubelet make it (kubernetes.io/docs: Indexed Job, downward API)."""
    fields = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": f"{index}", "spec.nodeName": f"host{index}"}
    told = {
        entry["name"]: entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container["env"]
    }
    return {**told, "JOB_COMPLETION_INDEX": f"{index}", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def started(made: Cluster, folder: Path, spec: dict[str, Any], skip: int = 0, wait: str = "") -> dict[int, tuple[int, str, str]]:
    """How each pod's init container ends, what it prints, and its message. ``wait``: how long a meeting may take."""
    (container,) = spec["initContainers"]
    script = container["command"][2].replace("--meet-within 600", f"--meet-within {wait}" if wait else "--meet-within 600")
    commands, env = {}, {}
    for number in range(1, made.nodes + 1):
        # As the headless service has it: the pod's name and the subdomain, in the cluster's search path.
        made.table(
            number, made.hosts + "".join(f"{made.address(n)} training-{n - 1}.training\n" for n in range(1, made.nodes + 1))
        )
        own = script.replace("/dev/termination-log", str(folder / f"message{number}")).replace(
            "torchtune-sys preflight", f"{TOOL} preflight"
        )
        env[number] = environment(container, number - 1)
        commands[number] = [*container["command"][:2], own]
    found = ran(made, {n: words for n, words in commands.items() if n != skip}, folder, env=env)
    return {n: (each.status, each.out + each.errors, (folder / f"message{n}").read_text()) for n, each in found.items()}


def test_pods_meet_and_name_the_unfit_node(tmp_path: Path) -> None:
    with cluster(tmp_path, NODES) as made:
        FAULTS["mtu"].plant(made, 3)
        found = started(made, tmp_path, pod(tmp_path, "--level", "fast"))
    assert [found[number][0] for number in range(1, NODES + 1)] == [1] * NODES, found
    for _status, said, message in found.values():
        assert "host2 [network] mtu-differs-between-nodes" in said, said
        assert message == said, "the pod's message is what was said"


@pytest.mark.exhaustive
def test_healthy_pods_start(tmp_path: Path) -> None:
    with cluster(tmp_path, NODES) as made:
        found = started(made, tmp_path, pod(tmp_path, "--level", "fast"))
    assert [found[number][0] for number in range(1, NODES + 1)] == [0] * NODES, found
    assert all(message.startswith("GO 4 of 4 nodes, 4 agents") for _status, _said, message in found.values())


@pytest.mark.exhaustive
def test_a_pod_that_never_starts_is_named_by_its_number(tmp_path: Path) -> None:
    with cluster(tmp_path, NODES) as made:
        found = started(made, tmp_path, pod(tmp_path, "--level", "fast"), skip=4, wait="8")
    assert {status for status, _said, _message in found.values()} == {1}, found
    assert all("did not come: node 3" in message for _status, _said, message in found.values()), found


@pytest.mark.exhaustive
def test_at_level_standard_pods_train_together(tmp_path: Path) -> None:
    python = torch_python()
    with cluster(tmp_path, NODES) as made:
        spec = pod(tmp_path)
        script = spec["initContainers"][0]["command"]
        script[2] = script[2].replace("--level standard", f"--level standard --python {python}")
        found = started(made, tmp_path, spec)
    assert [found[number][0] for number in range(1, NODES + 1)] == [0] * NODES, found
    assert all(message.startswith("GO 4 of 4 nodes, 4 ranks") for _status, _said, message in found.values()), found
