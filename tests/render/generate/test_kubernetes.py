"""What ``generate kubernetes`` prints: valid for five releases, sound in what schemas do not ask, and its commands do what they should."""

from __future__ import annotations

import copy
import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
TOOL = Path(sys.executable).with_name("torchtune-sys")
VERSIONS = ("1.30", "1.32", "1.34", "1.36", "1.37")
USUAL = ("--image", "registry/train:1", "--nodes", "4", "--gpus", "8")
FORMS = {
    "job": ("job", *USUAL),
    "job-fast": ("job", *USUAL, "--level", "fast", "--secret", "mine"),
    "job-closed": ("job", *USUAL, "--fail-closed", "--policy", "/etc/a b.toml", "--", "python", 'x "y" $z.py'),
    "jobset": ("jobset", *USUAL),
    "daemonset": ("daemonset", *USUAL, "--runtime-class", "nvidia"),
    "daemonset-act": ("daemonset", *USUAL, "--act", "--namespace", "ops"),
}
Document = dict[str, Any]


@functools.cache
def printed(*words: str) -> str:
    done = subprocess.run([str(TOOL), "generate", "kubernetes", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(form: str) -> list[Document]:
    return [*yaml.safe_load_all(printed(*FORMS[form]))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_schemas_of_five_releases_take_it(form: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents(form):
        if document["kind"] == "JobSet":  # no release's: its job is
            document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": document["metadata"], "spec": _job(document)["spec"]}
        for version in VERSIONS:
            validate.validate(document, version, strict=True)


@pytest.mark.parametrize("form", FORMS)
def test_what_schemas_do_not_ask_is_sound(form: str) -> None:
    assert problems(documents(form)) == []


@pytest.mark.parametrize("form", FORMS)
def test_the_page_says_what_the_pod_security_standards_lack(form: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/: what of *restricted* a pod does not have."""
    kinds = {each["kind"]: each for each in documents(form)}
    pod = _pod(kinds)
    lacks = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    lacks += [
        next(iter(set(each) - {"name"})) for each in pod.get("volumes", ()) if not set(each) & {"emptyDir", "secret", "configMap"}
    ]
    lacks += [] if pod.get("securityContext", {}).get("runAsNonRoot") else ["runAsNonRoot"]
    for each in (*pod.get("initContainers", ()), *pod["containers"]):
        rights = each["securityContext"]
        sound = rights["allowPrivilegeEscalation"] is False and rights["capabilities"] == {"drop": ["ALL"]}
        lacks += [] if sound and rights["seccompProfile"] == {"type": "RuntimeDefault"} else [each["name"]]
    assert lacks == (["hostNetwork", "runAsNonRoot"] if form.startswith("daemonset") else ["runAsNonRoot"])


def _job(document: Document) -> Document:
    return document["spec"]["replicatedJobs"][0]["template"] if document["kind"] == "JobSet" else document


PLANTED: dict[str, tuple[str, Callable[[dict[str, Document]], Any]]] = {
    "a Job that restarts in place": ("job", lambda d: _pod(d).update(restartPolicy="Always")),
    "a Job whose pods have no number": ("job", lambda d: d["Job"]["spec"].update(completionMode="indexed")),
    "a medium that there is not": ("job", lambda d: _pod(d)["volumes"][0]["emptyDir"].update(medium="memory")),
    "a mount of no volume": ("job", lambda d: _pod(d)["containers"][0]["volumeMounts"][0].update(name="shn")),
    "a service that balances": ("job", lambda d: d["Service"]["spec"].pop("clusterIP")),
    "a service that waits for readiness": ("job", lambda d: d["Service"]["spec"].pop("publishNotReadyAddresses")),
    "a service of other pods": ("job", lambda d: d["Service"]["spec"]["selector"].update({"app.kubernetes.io/name": "x"})),
    "a subdomain without a service": ("job", lambda d: _pod(d).update(subdomain="x")),
    "an address of no pod": ("job", lambda d: _pod(d)["initContainers"][0]["env"][0].update(value="training-9.training")),
    "fewer pods at once than meet": ("job", lambda d: d["Job"]["spec"].update(parallelism=3)),
    "a field that there is not": (
        "job",
        lambda d: _pod(d)["initContainers"][0]["env"][3]["valueFrom"]["fieldRef"].update(fieldPath="metadata.index"),
    ),
    "a message from nowhere": ("job", lambda d: _pod(d)["initContainers"][0].update(terminationMessagePolicy="Files")),
    "rights in the cluster that nobody uses": ("job", lambda d: _pod(d).update(automountServiceAccountToken=True)),
    "a variable twice": ("job", lambda d: _pod(d)["containers"][0]["env"].append({"name": "RANK", "value": "0"})),
    "a daemon that ends": ("daemonset", lambda d: _pod(d).update(restartPolicy="Never")),
    "a daemon of other pods": ("daemonset", lambda d: d["DaemonSet"]["spec"]["selector"].update(matchLabels={"a": "b"})),
    "a daemon with a token for nothing": ("daemonset", lambda d: _pod(d).update(automountServiceAccountToken=True)),
    "a toleration that there is not": ("daemonset", lambda d: _pod(d)["tolerations"][0].update(operator="exists")),
    "more rights than needed": ("daemonset-act", lambda d: d["ClusterRole"]["rules"][0]["verbs"].append("delete")),
    "a right to all": ("daemonset-act", lambda d: d["ClusterRole"]["rules"][0].update(resources=["*"])),
    "rights for another account": ("daemonset-act", lambda d: d["ClusterRoleBinding"]["subjects"][0].update(name="x")),
    "a role that there is not": ("daemonset-act", lambda d: d["ClusterRoleBinding"]["roleRef"].update(name="x")),
    "an account of another namespace": ("daemonset-act", lambda d: d["ServiceAccount"]["metadata"].update(namespace="default")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_error_is_seen(name: str) -> None:
    form, plant = PLANTED[name]
    found = {document["kind"]: copy.deepcopy(document) for document in documents(form)}
    assert problems([*found.values()]) == []
    plant(found)
    assert problems([*found.values()])


def _pod(found: dict[str, Document]) -> Document:
    top = next(found[kind] for kind in ("Job", "JobSet", "DaemonSet") if kind in found)
    spec: Document = _job(top)["spec"]["template"]["spec"]
    return spec


def problems(found: list[Document]) -> list[str]:
    """What a cluster refuses, or what would not work there, although the schemas allow it."""
    kinds = {document["kind"]: document for document in found}
    return [*_of_pods(kinds), *_of_jobs(kinds), *_of_the_daemon(kinds)]


def _of_pods(kinds: dict[str, Document]) -> Iterator[str]:
    pod = _pod(kinds)
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    media = {volume["emptyDir"].get("medium", "") for volume in pod.get("volumes", ()) if "emptyDir" in volume}
    if not media <= {"", "Memory"}:
        yield f"medium {media}"
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        if unknown := {mount["name"] for mount in container.get("volumeMounts", ())} - volumes:
            yield f"no volume {unknown}"
        names = [entry["name"] for entry in container.get("env", ())]
        if len({*names}) != len(names):
            yield "a variable twice"
        paths = {
            entry["valueFrom"]["fieldRef"]["fieldPath"]
            for entry in container.get("env", ())
            if "fieldRef" in entry.get("valueFrom", ())
        }
        if not paths <= {"spec.nodeName", "metadata.annotations['batch.kubernetes.io/job-completion-index']"}:
            yield f"no field {paths}"
        if container.get("terminationMessagePolicy", "File") not in ("File", "FallbackToLogsOnError"):
            yield "no such policy of messages"
        if container["securityContext"].get("allowPrivilegeEscalation") is not False or container["securityContext"].get(
            "privileged"
        ):
            yield "privileged"
    if any(each.get("operator", "Equal") not in ("Equal", "Exists") for each in pod.get("tolerations", ())):
        yield "no such operator"
    if pod["automountServiceAccountToken"] != ("ClusterRole" in kinds):
        yield "a token without rights, or rights without a token"


def _of_jobs(kinds: dict[str, Document]) -> Iterator[str]:
    top = kinds.get("Job") or kinds.get("JobSet")
    if top is None:
        return
    spec, pod = _job(top)["spec"], _pod(kinds)
    name = top["metadata"]["name"]
    if pod["restartPolicy"] not in ("Never", "OnFailure"):
        yield "restartPolicy of a Job"
    if spec.get("completionMode") != "Indexed" or not spec["completions"] == spec["parallelism"] == 4:
        yield "not an Indexed Job whose pods all run at once"
    if "Service" in kinds:
        service = kinds["Service"]["spec"]
        if service.get("clusterIP") != "None" or service.get("publishNotReadyAddresses") is not True:
            yield "the service is not headless, or waits for readiness"
        labels = spec["template"]["metadata"]["labels"]
        if not service["selector"].items() <= labels.items() or pod.get("subdomain") != kinds["Service"]["metadata"]["name"]:
            yield "the service is not the pods'"
        hosts = [f"{name}-{index}.{pod.get('subdomain')}" for index in range(spec["completions"])]
    else:
        network = top["spec"]["network"]
        if not network["enableDNSHostnames"] or not network["publishNotReadyAddresses"]:
            yield "no host names"
        job = top["spec"]["replicatedJobs"][0]
        hosts = [f"{name}-{job['name']}-0-{index}.{network['subdomain']}" for index in range(spec["completions"])]
    for container in (*pod["initContainers"], *pod["containers"]):
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        if env["MASTER_ADDR"] != hosts[0] or env["WORLD_SIZE"] != str(spec["completions"]):
            yield "the address or the number of the pods"


def _of_the_daemon(kinds: dict[str, Document]) -> Iterator[str]:
    daemon = kinds.get("DaemonSet")
    if daemon is None:
        return
    if daemon["spec"]["template"]["spec"]["restartPolicy"] != "Always":
        yield "restartPolicy of a DaemonSet"
    if daemon["spec"]["selector"]["matchLabels"] != daemon["spec"]["template"]["metadata"]["labels"]:
        yield "other pods than its own"
    if "ClusterRole" not in kinds:
        return
    rights = {
        (rule["apiGroups"][0], kind, verb)
        for rule in kinds["ClusterRole"]["rules"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    if rights != {("", "nodes", "get"), ("", "nodes", "list"), ("", "nodes", "patch"), ("", "nodes/status", "patch")}:
        yield f"rights {rights}"
    account = kinds["ServiceAccount"]["metadata"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    binding = kinds["ClusterRoleBinding"]
    if binding["subjects"] != [subject] or binding["roleRef"]["name"] != kinds["ClusterRole"]["metadata"]["name"]:
        yield "whose rights"
    if daemon["metadata"]["namespace"] != account["namespace"]:
        yield "an account of another namespace"
    if daemon["spec"]["template"]["spec"]["serviceAccountName"] != account["name"]:
        yield "no account"


# -- the init container's command ----------------------------------------------------------------------------------------------------------


def ends(tmp_path: Path, tool: str, *words: str) -> tuple[int, str, str]:
    """How the command ends where the tool does ``tool``; what it prints, and the pod's message."""
    script = _script("job", *words)
    message = tmp_path / "message"
    message.unlink(missing_ok=True)
    fake = tmp_path / "bin" / "torchtune-sys"
    fake.parent.mkdir(exist_ok=True)
    fake.unlink(missing_ok=True)
    if tool:
        fake.write_text(f"#!/bin/sh\n{tool}\n")
        fake.chmod(0o755)
    env = {"PATH": f"{fake.parent}:/usr/bin:/bin"}
    argv = ["sh", "-c", script.replace("/dev/termination-log", str(message))]
    done = subprocess.run(argv, env=env, capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(errors="replace"), message.read_bytes().decode("ascii")


def _script(piece: str, *words: str) -> str:
    found = {document["kind"]: document for document in yaml.safe_load_all(printed(piece, *USUAL, *words))}
    script: str = _pod(found)["initContainers"][0]["command"][2]
    return script


TOOLS = {
    "go": ("echo 'GO 4 of 4 nodes'", 0, 0),
    "no-go": ("echo 'NO-GO 4 of 4 nodes'; exit 1", 1, 1),
    "a wrong option": ("echo 'usage' >&2; exit 2", 0, 2),
    "unknown": ("echo 'UNKNOWN 4 of 4 nodes'; exit 3", 0, 3),
    "a bug": ("echo 'internal' >&2; exit 4", 0, 4),
    "a traceback": ("echo 'Traceback' >&2; exit 1", 0, 1),
    "killed": ("kill -9 $$", 0, 137),
    "gone": ("", 0, 127),
}


@pytest.mark.parametrize("name", TOOLS)
def test_only_no_go_keeps_a_pod_from_starting(tmp_path: Path, name: str) -> None:
    tool, status, closed = TOOLS[name]
    assert ends(tmp_path, tool)[0] == status
    assert ends(tmp_path, tool, "--fail-closed")[0] == closed


def test_the_message_has_4096_bytes_at_most_and_no_other_signs_than_ascii(tmp_path: Path) -> None:
    tool = "echo 'NO-GO’'; i=0; while [ $i -lt 900 ]; do echo 'wörds \033[31m'; i=$((i+1)); done; exit 1"
    status, _out, message = ends(tmp_path, tool)
    assert (status, len(message)) == (1, 4096)
    assert message.startswith("NO-GO\nwrds [31m")


def test_what_cannot_be_a_name_is_refused() -> None:
    for words in (
        ("job", "--image", "x", "--name", "A"),
        ("job", "--image", "x", "--name", "a" * 60),
        ("job", "--image", "x", "--shm", "a lot"),
        ("job", "--image", "x", "--act"),
        ("daemonset", "--image", "x", "--", "train"),
        ("job", "--image", ""),
        ("job", "--image", "my image"),
        ("job", "--image", "x\ny: z"),
        ("job", "--image", "-x"),
        ("job", "--image", "x", "--secret", "a b"),
        ("job", "--image", "x", "--secret", "A"),
        ("daemonset", "--image", "x", "--runtime-class", "nvidia_rt"),
    ):
        done = subprocess.run([str(TOOL), "generate", "kubernetes", *words], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (2, ""), words


@pytest.mark.parametrize(
    "image",
    ["x", "r.example:5000/a/b_c:1.2-rc.1", "nvcr.io/nvidia/pytorch:25.01-py3", f"x@sha256:{'0' * 64}", "X:1", "a__b:Tag_1+x"],
)
def test_images_are_taken(image: str) -> None:
    done = subprocess.run(
        [str(TOOL), "generate", "kubernetes", "job", "--image", image, "--secret", "a.b-1"], timeout=60, check=False
    )
    assert done.returncode == 0


def test_what_is_given_stays_one_word() -> None:
    found = {document["kind"]: document for document in documents("job-closed")}
    assert _pod(found)["containers"][0]["command"] == ["python", 'x "y" $z.py']
    assert "--policy '/etc/a b.toml'" in _pod(found)["initContainers"][0]["command"][2]
    assert re.search(r"sizeLimit: \"8Gi\"", printed(*FORMS["job"]))
    assert json.loads(json.dumps(found["Job"]["spec"]["backoffLimit"])) == 0


def test_the_namespace_is_given_to_every_object() -> None:
    for piece in ("job", "jobset", "daemonset"):
        made = [*yaml.safe_load_all(printed(piece, "--image", "a", "--namespace", "train"))]
        assert {document["metadata"].get("namespace", "train") for document in made} == {"train"}, piece
        assert "namespace" in made[-1]["metadata"]
    made = [*yaml.safe_load_all(printed("job", "--image", "a"))]
    assert [document for document in made if "namespace" in document["metadata"]] == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("kubernetes daemonset --image a --nodes 4 --shm 1Gi", 0, ("--nodes has no effect on daemonset", "--shm has no effect")),
        ("kubernetes daemonset --image a --fail-closed", 2, ("--fail-closed has no effect on daemonset",)),
        ("kubernetes daemonset --image a --max-tainted 3", 2, ("it is for daemonset --act",)),
        ("kubernetes job --image a --act", 2, ("--act has no effect on job",)),
        ("slurm prolog --tool /a --isolate", 2, ("--isolate has no effect on prolog",)),
        ("slurm batch --tool /a --drain-state /x", 0, ("--drain-state has no effect on batch",)),
        ("slurm conf --python /a", 0, ("--python has no effect on conf",)),
    ],
)
def test_an_option_without_effect_is_not_passed_over_in_silence(words: str, status: int, said: tuple[str, ...]) -> None:
    done = subprocess.run([str(TOOL), "generate", *words.split()], capture_output=True, text=True, timeout=60)
    assert done.returncode == status and all(part in done.stderr for part in said), done.stderr
