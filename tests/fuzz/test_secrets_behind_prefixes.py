"""Secrets in a text of which each line has a prefix, as launchers, collectors and the kernel put one: the same as without it."""

from __future__ import annotations

import time

import pytest

from host.secrets.test_secret_forms import IN_PLACES, OVER_LINES, WORD
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.host.secrets.values import HIDDEN

PREFIXES = {
    "torchrun": "[rank0]: ",
    "the kernel": "[ {n}.{n:06}] ",
    "the kernel's, by syslog": "Nov 27 22:00:{n:02} n1 kernel: [ 1.2345{n:02}] ",
    "syslog": "Nov 27 22:00:{n:02} n1 app[12]: ",
    "syslog, RFC 5424": "<14>1 2026-11-27T22:00:{n:02}Z h app - - ",
    "journalctl -o short-iso": "2026-11-27T22:00:{n:02}+0000 n1 app[12]: ",
    "docker logs -t": "2026-11-27T22:00:{n:02}.123456789Z ",
    "Python": "2026-11-27 22:00:{n:02},123 - INFO - ",
    "Python, with the logger": "2026-11-27 22:00:{n:02},123 - train.main - INFO - ",
    "kubectl": "[pod/trainer-0/main] ",
    "stern": "trainer-0 main ",
    "a pod's file": "2026-11-27T22:00:{n:02}.123456789Z stdout F ",
    "compose": "web_1  | ",
    "srun": "0: ",
    "mpiexec": "[0] ",
    "mpirun": "[1,0]<stdout>:",
    "pdsh": "n1: ",
    "pdsh and torchrun": "n1: [rank3]: ",
    "Ray": "(RayTrainWorker pid=12, ip=10.0.0.1) ",
    "grep": "slurm-1.out:{n}:",
    "cat": "    {n}\t",
    "klog": "E1127 22:00:{n:02}.123456     140 file.cc:12] ",
    "elastic": "[default0]:",
    "a level": "INFO:train:",
    "a thread": "(MainThread) [2026-11-27 22:00:{n:02}] ",
}


def prefixed(text: str, prefix: str, other: str = "") -> str:
    """``text`` with a prefix before each line, among others; ``other``: among lines of another."""
    body = ["started", *text.rstrip("\n").split("\n"), "done", "loss 1.0", "loss 0.9"]
    lines = []
    for number, line in enumerate(body, 10):
        lines += [prefix.format(n=number) + line, *([other.format(n=number) + "loss 2.0"] if other else [])]
    return "\n".join(lines)


@pytest.mark.parametrize("style", PREFIXES)
@pytest.mark.parametrize("form", OVER_LINES)
def test_a_form_of_several_lines_behind_a_prefix(form: str, style: str) -> None:
    text = prefixed(OVER_LINES[form], PREFIXES[style])
    found = scrubbed(text)
    assert WORD not in found and "kept" in found and HIDDEN in found and "loss 0.9" in found
    shared = [*set(text.split("\n")) & set(found.split("\n"))]
    assert len(shared) >= 4, "the lines around it stay"


@pytest.mark.parametrize("style", ["torchrun", "srun", "pdsh", "compose", "mpirun", "Ray"])
@pytest.mark.parametrize("form", ["a pod's variable", "a block of YAML", "arguments of a pod", "a cluster's secret"])
def test_a_form_of_several_lines_among_those_of_another_rank(form: str, style: str) -> None:
    mine = PREFIXES[style]
    found = scrubbed(prefixed(OVER_LINES[form], mine, mine.replace("0", "7").replace("n1", "n7").replace("_1", "_7")))
    assert WORD not in found and found.count("loss 2.0") >= 8


@pytest.mark.parametrize("style", PREFIXES)
def test_a_form_of_one_line_behind_a_prefix(style: str) -> None:
    out = {
        place
        for place, (text, secret) in (IN_PLACES | {"bindpw": ("bindpw @", WORD)}).items()
        if secret in scrubbed(prefixed(text.replace("@", secret, 1), PREFIXES[style]))
    }
    assert not out


@pytest.mark.parametrize(
    "line",
    ["[rank0]: bindpw @", "n1: rootpw @", "Nov 27 22:00:00 n1 app[12]: db_secret @", "[  1.234567] wifi.passphrase = a @ b"],
)
def test_a_line_alone(line: str) -> None:
    assert WORD not in scrubbed(line.replace("@", WORD))


@pytest.mark.parametrize(
    "text",
    [
        "name: DB_PASSWORD is not set\nvalue: 12 tokens",
        "the db_secret could not be found",
        "value of token: |\nnext",
        "- name: NCCL_DEBUG\n  value: INFO",
        "kind: ConfigMap\ndata:\n  NCCL_DEBUG: INFO",
    ],
)
@pytest.mark.parametrize("style", PREFIXES)
def test_what_is_no_secret_stays(text: str, style: str) -> None:
    given = prefixed(text, PREFIXES[style])
    plain = scrubbed(text)
    assert scrubbed(given) == given if plain == text else scrubbed(given).count(HIDDEN) == plain.count(HIDDEN)


@pytest.mark.sampled(2, 2)
@pytest.mark.parametrize("style", ["torchrun", "the kernel", "pdsh and torchrun", "stern", "cat"])
def test_time_is_in_proportion(style: str) -> None:
    def seconds(lines: int) -> float:
        text = "\n".join(
            PREFIXES[style].format(n=at % 60) + ("- name: X_SECRET", "  value: x", "token: |", "  a", "bindpw x")[at % 5]
            for at in range(lines)
        )
        took = []
        for _ in range(3):
            started = time.thread_time()
            scrubbed(text)
            took.append(time.thread_time() - started)
        return min(took)

    seconds(100)
    once, twice, four = seconds(1000), seconds(2000), seconds(4000)
    assert twice < 4 * once and four < 8 * once, f"{once:.4f}, {twice:.4f}, {four:.4f} s"
