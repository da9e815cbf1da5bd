"""The bundle for a bug report: nobody's names in it, the same diagnosis from it; and one diagnosis of many nodes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import warm
from torchtune_sys.diagnosis.pseudonyms import Pseudonyms

PLANTED = {
    "user": "jdoe77",
    "host": "trainbox-14",
    "domain": "trainbox-14.megacorp.internal",
    "address": "10.77.31.9",
    "address6": "2001:db8:77::beef",
    "mac": "b8:ce:f6:12:34:56",
    "serial": "SN1652819007341",
    "uuid": "GPU-3f2b8e6a-1c2d-4e5f-8a9b-0c1d2e3f4a5b",
    "mail": "jane.doe@megacorp.example",
    "folder": "acme-merger",
    "file": "secretproject",
    "value": "quarterly-figures",
    "token": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
}
TEXT = """\
{user}@{host}:~$ PROJECT={value} HF_TOKEN={token} python /home/{user}/{folder}/{file}.py
{host}:55:90 [2] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to {address}<5> returned 113(No route to host)
Linux {host} 5.15.0-91-generic #101 SMP x86_64
Hostname: {host}
[rank3]:   File "/data/{folder}/{file}.py", line 4, in main
could not reach {domain} ({address6}), ask {mail}
Serial Number : {serial}
    GPU UUID : {uuid}
link/ether {mac} brd ff:ff:ff:ff:ff:ff
[rank3]: RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.
"""


def run(*args: str | Path, stdin: str = "") -> str:
    done = subprocess.run([*warm.PROGRAM, "diagnose", *map(str, args)], input=stdin, capture_output=True, text=True)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.stdout


def causes(text: str) -> list[tuple[str, str]]:
    return [(cause["cause"], cause["confidence"]) for cause in json.loads(text)["causes"]]


def test_nothing_planted_is_in_the_bundle_and_it_is_diagnosed_alike(tmp_path: Path) -> None:
    bundle = tmp_path / "report.md"
    given = [*warm.PROGRAM, "diagnose", "--format", "json", "--share", str(bundle)]
    done = subprocess.run(given, input=TEXT.format(**PLANTED), capture_output=True, text=True)
    assert done.stderr == f"{bundle} holds the evidence, anonymised; look through it before you send it\n"
    before = done.stdout
    text = bundle.read_text()
    assert [name for name, value in PLANTED.items() if value in text] == []
    assert causes(before)
    assert causes(run("--format", "json", bundle)) == causes(before)


@pytest.mark.parametrize("name", ["user", "host", "address", "mac", "serial", "uuid", "mail", "folder", "file", "value", "token"])
def test_what_is_looked_for_was_in_what_was_given(name: str) -> None:
    assert PLANTED[name] in TEXT.format(**PLANTED)


@pytest.mark.essential
def test_many_nodes_become_one_diagnosis_with_what_follows_after_the_first_failure(tmp_path: Path) -> None:
    bus = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n"
    refused = "misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<5> returned 111(Connection refused)\n"
    lines = []
    told = {text: json.loads(run("--symptoms", stdin=text)) for text in (bus, refused)}
    for number in range(8):
        value = told[bus if number == 3 else refused]
        lines.append(json.dumps({**value, "node": f"n{number}"}))
    lines.insert(2, "srun: error: not a line of ours")
    found = json.loads(run("--merge", "--format", "json", stdin="\n".join(lines)))
    assert [(cause["cause"], cause["hosts"]) for cause in found["causes"][:1]] == [("dev-shm-too-small", ["n3"])]
    refusing = next(cause for cause in found["causes"] if cause["cause"] == "firewall-blocks-nccl")
    assert (refusing["confidence"], len(refusing["hosts"])) == ("possible", 7)
    assert len(found["unread"]) == 1


def test_a_name_that_is_in_a_text_is_given_to_no_other_host() -> None:
    """A log that was shared before, with lines of today: *gpu-7* became *host-1*, which was another one."""
    lines = ["host-1:55:90 [0] NCCL WARN x", "gpu-7:55:90 [0] NCCL WARN y", "/home/user-1/a /home/alice/b", "user-2@host-2:~$ ls"]
    names = Pseudonyms(lines)
    first = [names.text(line) for line in lines]
    assert first[0] == lines[0] and first[1].startswith("host-3:55") and "/home/user-3/" in first[2] and first[3] == lines[3]


def test_where_file_systems_are_mounted_names_nobody() -> None:
    names = Pseudonyms()
    text = names.text(
        "df -h /home /scratch\n/dev/md0 7.0T 7.0T 0 100% /home\n/dev/md1 1T 1T 0 100% /home/jdoe77\ncd /home/jdoe77/x"
    )
    assert "100% /home\n" in text and "/scratch\n" in text and "jdoe77" not in text
    assert text.count("/home/user-1") == 2
