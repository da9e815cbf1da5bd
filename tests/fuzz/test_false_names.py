"""Names that are not whose they seem: of a daemon, a socket, an interpreter, a file of secrets (docs/attacks.md)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from driven import HOSTS

from fuzz.forms_of_secrets import clusters
from fuzz.hosts import judged_as_changed, recording
from torchtune_sys.host.children.left_processes import at_work
from torchtune_sys.host.live_queries.sockets import bound_socket, parse_bound
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.host.scrubbed import ScrubbedHost
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.python.distributions import _distribution
from torchtune_sys.probes.python.probe import parse_torch
from two_users import Scene, needs_root

SECRET = clusters.HORSE


@needs_root
def test_a_user_s_program_that_calls_itself_slurm_s_keeps_no_job_at_work(scene: Scene, tmp_path: Path) -> None:
    """What a job left behind would be a running job's, in the epilog and for the GPU's memory."""
    place = scene.alice.home / "slurmstepd"
    shutil.copy("/bin/sleep", place)
    argv, job = ["slurmstepd: [4242.batch]", "60"], {"SLURM_JOB_ID": "4242"}
    asked = subprocess.Popen(["/bin/sleep", "60"], env=job, user=scene.alice.uid, group=scene.alice.gid)
    hers = subprocess.Popen(argv, executable=place, user=scene.alice.uid, group=scene.alice.gid)
    try:
        assert at_work([asked.pid]) == frozenset()
        daemon = subprocess.Popen(argv, executable=place)
        try:
            assert at_work([asked.pid]) == {asked.pid}, "nothing was asked"
        finally:
            daemon.kill()
            daemon.wait()
    finally:
        for one in (asked, hers):
            one.kill()
            one.wait()


@pytest.mark.parametrize("form", ["\0x {}", "\0x\n0: 00000002 00000000 00010000 0005 01 77 {}"], ids=["a blank", "a line"])
def test_the_name_of_another_socket_is_no_daemon_that_listens(form: str) -> None:
    """Names of abstract sockets are anybody's, and stand in /proc/net/unix as they are."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as other:
        path = f"{folder}/control"  # a name may have 107 letters
        other.bind(form.format(path))
        with open("/proc/net/unix") as file:
            assert parse_bound(file.read(), path), "it is no way in"
        assert bound_socket(path, 1.0) is False
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
            daemon.bind(path)
            daemon.listen()
            daemon.settimeout(0.2)
            assert bound_socket(path, 1.0) is True
            with pytest.raises(TimeoutError):
                daemon.accept()
        assert bound_socket(path, 1.0) is False


def test_a_version_that_holds_a_secret_is_not_shown() -> None:
    path = "/data/train/.venv/lib/python3.12/site-packages/torch/version.py"
    folder = f"torch-2.4.0+password={SECRET}.dist-info"
    found = merged(load_recording(str(HOSTS / "healthy.json")), {"files": {path: f"__version__ = '2.4.0+password={SECRET}'\n"}})
    host = ScrubbedHost(RecordedHost(found, "x"))
    text = host.text(path)
    assert isinstance(text, str)
    torch = parse_torch(text, "/x", ())
    assert SECRET not in repr(torch) and "2.4.0+password=" in repr(torch)
    assert SECRET not in _distribution(host, "/x", folder, "torch", f"2.4.0+password={SECRET}").version


def test_the_name_of_a_file_of_secrets_is_none() -> None:
    assert (
        scrubbed("--secret-file has no effect: this node is judged alone")
        == "--secret-file has no effect: this node is judged alone"
    )
    assert SECRET not in scrubbed(f"x --secret {SECRET} --password-file /run/pw --token {SECRET}")


@pytest.mark.parametrize("version", ["3", "", "x", "9" * 400])
def test_an_interpreter_that_tells_no_version_crashes_no_rule(version: str) -> None:
    """Found by atheris: torch's wheel was compared with a version of one number."""
    host, question = recording("healthy"), "interpreter:/data/train/.venv/bin/python3"
    answers = {**host["answers"], question: {**host["answers"][question], "version": version}}
    seen, results = judged_as_changed("healthy", {**host, "answers": answers}, {("answers", question)})
    assert not isinstance(seen.python, Missing) and isinstance(seen.python.version, Missing)
    assert results, "those that crash raise"


KNOWN_TO_COME_OUT = ("Vast",)
"""A login in no URL, and without the name of a secret."""


@pytest.mark.parametrize("row", clusters.ALL, ids=lambda row: row[0])
def test_a_secret_that_clusters_write(row: tuple[str, str, str]) -> None:
    name, text, secret = row
    plain, secret = text.replace("@", secret, 1).replace("%", "@").replace("\0", "%"), secret.replace("\0", "%")
    assert secret in plain
    assert (secret in scrubbed(plain)) == (name in KNOWN_TO_COME_OUT)
