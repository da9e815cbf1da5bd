"""Two hundred secrets in every place that a probe reads: none is in any output of any command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from outputs import outputs, said

import warm
from conftest import HOSTS
from planted_secrets import KEYED, TOKENS, Secrets
from torchtune_sys.cli.commands import compare, diagnose, preflight
from torchtune_sys.evidence import read
from torchtune_sys.host.environment import NAMES, PREFIXES
from torchtune_sys.host.input.opening import PastedText, open_input
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.host.scrubbed import ScrubbedHost, may_hold_secrets
from torchtune_sys.host.secrets.filter import scrubbed, scrubbed_file
from torchtune_sys.host.secrets.values import HIDDEN
from torchtune_sys.model import codec

WRITTEN = {
    "/root/.nccl.conf": "NCCL_DEBUG=INFO\n",
    "/etc/nccl.conf": "NCCL_IB_HCA=mlx5\n",
    "/etc/docker/daemon.json": '{"exec-opts": ["native.cgroupdriver=systemd"]}\n',
    "/etc/pip.conf": "[global]\n",
    "/etc/sysctl.d/90-site.conf": "vm.swappiness=10\n",
    "/etc/modprobe.d/site.conf": "options x y=1\n",
    "/etc/systemd/system/slurmd.service.d/site.conf": "[Service]\nLimitMEMLOCK=infinity\n",
    "/etc/slurm/slurm.conf": "PropagateResourceLimits=NONE\n",
    "/etc/default/grub": 'GRUB_CMDLINE_LINUX="quiet"\n',
    "/etc/tuned/active_profile": "x\n",
    "/etc/sysctl.d/99-torchtune-sys.conf": "# by hand\n",
}


def planted(secrets: Secrets) -> dict[str, Any]:
    """A host with findings and changes; each of its texts that people write holds secrets."""
    found: dict[str, Any] = {"files": WRITTEN}
    for name in ("tcp-buffer-ceiling-low", "swappiness-high", "openmp-affinity-pins-process"):
        found = merged(found, load_recording(str(HOSTS / f"{name}.fail.json")))
    found["files"] = {path: _file(secrets, path, content) for path, content in found["files"].items()}
    found["env"] = {**found["env"], **variables(secrets)}
    found["answers"] = {name: _answer(secrets, name, value) for name, value in found["answers"].items()}
    found["commands"] = {
        argv: {**output, "stdout": "\n".join([output.get("stdout", ""), *secrets.of_each()])} if "error" not in output else output
        for argv, output in found.get("commands", {}).items()
    }
    return found


def variables(secrets: Secrets) -> dict[str, str]:
    names = (
        "NCCL_COMMENT",
        "TORCH_NOTE",
        "CUDA_NOTE",
        "SLURM_JOB_NAME",
        "SLURM_JOB_COMMENT",
        "HF_HOME",
        "PYTHONPATH",
        "MASTER_ADDR",
        "CONDA_NOTE",
    )
    found = {name: line for name in names for line in secrets.of_each()[:1]}
    found |= {f"NCCL_X{number}": secrets.password() for number in range(len(KEYED))}
    found |= {f"SLURM_Y{number}": secrets.token() for number in range(len(TOKENS))}
    secrets.planted |= (named := {secrets.word(): "a name" for _ in range(6)})
    named_so = ("HF_TOKEN", "NCCL_SECRET", "SLURM_JWT", "TORCH_API_KEY", "CUDA_PASSWORD", "HTTPS_PROXY")
    return found | dict(zip(named_so, named, strict=True)) | {"SUDO_COMMAND": f"/usr/bin/env {secrets.password()}"}


def _file(secrets: Secrets, path: str, content: Any) -> Any:
    if not may_hold_secrets(path) or isinstance(content, dict) or content is None:
        return content
    lines = content if isinstance(content, list) else content.rstrip("\n").split("\n")
    if path == "/proc/cmdline":
        return " ".join([*lines, *(secrets.argument() for _ in range(6))]) + "\n"
    if path.endswith("mountinfo"):
        return [*lines, f"999 1 0:99 / /mnt/a rw - cifs //joe:{_word(secrets)}@srv/x rw,username=joe,password={_word(secrets)}",
                f"998 1 0:98 / /mnt/b rw - fuse.sshfs joe:{_word(secrets)}@srv:/x rw", f"997 1 0:97 / /mnt/c rw - ceph 10.0.0.1:/ rw,name=a,secret={_word(secrets)}"]  # fmt: skip
    if path.startswith("/proc/"):
        return content
    return [*lines, *(f"# {line}" for line in secrets.of_each()), *secrets.key(), secrets.password(), ""]


def _word(secrets: Secrets) -> str:
    word = secrets.word()
    secrets.planted[word] = "a mount"
    return word


def _answer(secrets: Secrets, name: str, value: Any) -> Any:
    if name == "kernel-log" and isinstance(value, dict) and isinstance(value.get("lines"), list):
        noisy = [f"[    1.0] NVRM: Xid (PCI:0000:1b:00): 79, {line}" for line in (*secrets.of_each(), *secrets.of_each())]
        return {**value, "lines": [*value["lines"], *noisy]}
    if name.startswith("interpreter") and isinstance(value, dict) and isinstance(value.get("packages"), list):
        return {**value, "note": secrets.of_each(), "torch_error": f"ImportError: {secrets.token()}"}
    return value


def test_none_of_two_hundred_secrets_of_a_recording_is_in_any_output() -> None:
    secrets = Secrets()
    recording = planted(secrets)
    assert len(secrets.planted) >= 200 and len(TOKENS) + len(KEYED) >= 60
    assert secrets.seen_in(codec.dumps(recording).replace('\\"', '"')), "they were planted"
    leaks, marks = [], 0
    for command, found in outputs(lambda: ScrubbedHost(RecordedHost(recording, "recording x"))):
        leaks += [f"{command}: {secret}" for secret in secrets.seen_in(found.text)]
        marks += found.text.count(HIDDEN)
    assert leaks == []
    assert marks > 100, "what was hidden is shown as hidden"


def test_the_search_finds_what_is_not_hidden() -> None:
    secrets = Secrets()
    recording = planted(secrets)
    plain = dict(outputs(lambda: RecordedHost(recording, "recording x"), (("snapshot",),)))
    assert len(secrets.seen_in(plain["snapshot"].text)) > 10


def test_what_opens_an_input_hides(tmp_path: Path) -> None:
    secrets = Secrets(2)
    (tmp_path / "r.json").write_text(codec.dumps(planted(secrets)))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(secrets.argument())
    (tmp_path / "x.txt").write_text("PyTorch version: 2.11.0\n" + "\n".join(f"NCCL_X={line}" for line in secrets.of_each()))
    assert isinstance(open_input(str(tmp_path / "r.json")), ScrubbedHost) and isinstance(open_input(), ScrubbedHost)
    assert secrets.seen_in(str(open_input(str(tmp_path)).text("/proc/cmdline"))) == []  # type: ignore[union-attr]
    pasted = open_input(str(tmp_path / "x.txt"))
    assert isinstance(pasted, PastedText) and secrets.seen_in(pasted.text) == []
    assert "2.11.0" in codec.dumps(read(pasted.text, "x"))


def test_none_is_in_what_is_made_of_files(tmp_path: Path) -> None:
    """Facts, comparisons, pre-flights and diagnoses of two such hosts: each form, and each file that is written beside."""
    one, other = Secrets(4), Secrets(5)
    for name, secrets in (("a", one), ("b", other)):
        (tmp_path / f"{name}.json").write_text(codec.dumps(planted(secrets)))
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    beside = tmp_path / "beside"
    commands = [
        ("snapshot", "--compact", "--from", a),
        *(("preflight", "--from", a, "--format", form) for form in preflight.FORMATS),
        ("preflight", "--from", a, "--facts", str(beside)),
        *(("compare", a, b, "--format", form) for form in compare.FORMATS),
        ("compare", a, b, "--all"),
        ("compare", a, "--golden", b),
        ("fleet", "--dir", str(tmp_path), "--all"),
        *(("diagnose", a, "--format", form) for form in diagnose.FORMATS),
        ("diagnose", a, "--symptoms"),
        ("diagnose", a, "--share", str(beside)),
    ]
    for command in commands:
        beside.unlink(missing_ok=True)  # --share writes over nothing but its own reports
        found = said(*command)
        assert found.status in (0, 1), (command, found.err)
        text = found.text + (beside.read_text() if beside.exists() else "")
        assert one.seen_in(text) + other.seen_in(text) == [], command


def test_what_others_wrote_down_is_compared_without_secrets(tmp_path: Path) -> None:
    """Facts and snapshots that no filter of ours has seen."""
    secrets = Secrets(6)
    for name in "ab":
        seen = json.loads(
            dict(outputs(lambda: RecordedHost(planted(secrets), "x"), (("snapshot", "--format", "json"),)))[
                "snapshot --format json"
            ].out
        )
        seen["facts"]["session"]["env"]["WANDB_API_KEY"] = word = secrets.word()
        secrets.planted[word] = "a name"
        (tmp_path / f"{name}.json").write_text(json.dumps(seen))
    assert len(secrets.seen_in((tmp_path / "a.json").read_text())) > 50, "they are there"
    for form in compare.FORMATS:
        found = said("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--format", form)
        assert found.status == 1 and secrets.seen_in(found.text) == [], form


LOG_FORMS = {
    "plain": lambda lines: "\n".join(lines),
    "JSON": lambda lines: "\n".join(json.dumps({"log": line + "\n", "stream": "stderr"}) for line in lines),
    "JSON in JSON": lambda lines: "\n".join(json.dumps({"log": json.dumps({"message": line})}) for line in lines),
    "quoted": lambda lines: "\n".join(repr(line.replace("Error: ", "Error:\n") + "\ty") for line in lines),
    "in colours": lambda lines: "\n".join(line.replace("Error: ", "Error: \x1b[31m") + "\x1b[0m" for line in lines),
    "of a pod": lambda lines: "\n".join(f"2026-01-01T00:00:00.000000000Z stderr F {line}" for line in lines),
}


@pytest.mark.sampled(2, 2)
@pytest.mark.parametrize("form", LOG_FORMS)
def test_none_of_a_log_is_in_its_diagnosis(tmp_path: Path, form: str) -> None:
    secrets = Secrets(8)
    lines = [f"[rank{number % 8}]: RuntimeError: {line}" for number in range(70) for line in secrets.of_each()]
    lines += ["NCCL WARN " + secrets.password(), "export " + secrets.password(), "HF_TOKEN=" + secrets.token()]
    lines += [f"[    0.000000] Command line: {' '.join(secrets.argument() for _ in range(6))} quiet"]
    lines += secrets.key() if form == "plain" else []
    lines += ["Traceback (most recent call last):", '  File "/a.py", line 3, in f', "RuntimeError: CUDA error: out of memory"]
    assert len(secrets.planted) >= 200
    log, beside, line = tmp_path / "x.log", tmp_path / "share.md", tmp_path / "line"
    log.write_text(LOG_FORMS[form](lines))
    for command in (("--format", "text"), ("--format", "json"), ("--share", str(beside)), ("--symptoms", "-o", str(line))):
        found = said("diagnose", str(log), *command)
        assert found.status in (1, 3), found.err
        text = found.text + "".join(path.read_text() for path in (beside, line) if path.exists())
        assert secrets.seen_in(text) == [], command
    assert beside.read_text().count(HIDDEN) > 50
    merged_ = said("diagnose", "--merge", str(line))
    assert secrets.seen_in(merged_.text) == []


def test_a_private_key_leaves_whole_not_in_part(tmp_path: Path) -> None:
    """Base 64 has lines that no other net holds: those with many ``+`` and ``/``, and the last one, which is short."""
    rows = ["/".join(["abcdef+ghijkl"] * 4), "QmFzZTY0IGVuZA=="]
    (tmp_path / "x.log").write_text(
        "\n".join(["x", "-----BEGIN RSA PRIVATE KEY-----", *rows, "-----END RSA PRIVATE KEY-----", "RuntimeError: y"])
    )
    said("diagnose", str(tmp_path / "x.log"), "--share", str(tmp_path / "s.md"))
    text = (tmp_path / "s.md").read_text()
    assert "RuntimeError: y" in text and not any(row in text for row in rows)


def test_none_of_the_session_is_in_what_the_live_commands_print(tmp_path: Path) -> None:
    secrets = Secrets(3)
    env = {**os.environ, **variables(secrets), "HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    (tmp_path / ".nccl.conf").write_text("\n".join(f"NCCL_Z{number}={secrets.password()}" for number in range(31)))
    limited = ("--timeout", "60")
    for command in (
        *(("record", *limited), ("snapshot", "--format", "json", *limited), ("check", "-v", *limited), ("plan", "-v", *limited)),
        *(
            ("generate", "env", *limited),
            ("snapshot", "--compact", *limited),
            ("preflight", "--format", "json", "--budget", "60"),
        ),
        *(("history",), ("preflight", "--budget", "60", "--facts", str(tmp_path / "facts"))),
    ):
        argv = [*warm.PROGRAM, *command]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, 1, 3), done.stderr
        beside = (tmp_path / "facts").read_text() if (tmp_path / "facts").exists() else ""
        assert secrets.seen_in(done.stdout + done.stderr + beside) == [], command


def test_facts_are_left_as_they_are() -> None:
    """Of all recorded hosts no text is changed: identifiers, hashes, versions, paths and boot arguments are no secrets."""
    changed = []
    for path in sorted(HOSTS.rglob("*.json")):
        found = codec.loads(path.read_bytes())
        for name, content in (found.get("files") or {}).items():
            text = "\n".join(content) if isinstance(content, list) else content
            if isinstance(text, str) and may_hold_secrets(name) and scrubbed_file(text, name) != text:
                changed.append((path.name, name, scrubbed_file(text, name)))
        for section in ("commands", "answers", "env"):
            changed += [(path.name, section, text) for text in _texts(found.get(section)) if scrubbed(text) != text]
    assert changed == []


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def test_one_name_is_not_there_for_free_text() -> None:
    assert "SUDO_COMMAND" not in NAMES and not "SUDO_COMMAND".startswith(PREFIXES)


@pytest.mark.long
def test_what_the_smoke_test_quotes_of_the_environment_is_filtered(tmp_path: Path) -> None:
    """A torch of one file that prints and raises what a real one might: the URL of its index, a token in a header."""
    secret, token = "hunter2hunter2", "nvapi-" + "Zq8" * 15
    (tmp_path / "torch.py").write_text(
        f"import sys\nprint('index https://me:{secret}@pypi.example/simple', file=sys.stderr)\n"
        f"raise RuntimeError('Authorization: Bearer {token}')\n"
    )
    argv = [sys.executable, "-m", "torchtune_sys", "smoke", "--quick", "--no-proof", "--python", sys.executable]
    for format in ("text", "json", "junit"):
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([*argv, "--format", format], env=env, capture_output=True, text=True, timeout=200, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and "RuntimeError" in said, said
        assert secret not in said and token not in said
