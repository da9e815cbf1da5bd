"""Texts without a fault: healthy logs with warnings, questions, wishes, documents, changes, scripts. None is accused of anything."""

from __future__ import annotations

from pathlib import Path

from diagnose.test_forms import judged

TEXTS = Path(__file__).with_name("harmless.txt")
INNOCENTS = Path(__file__).with_name("innocents.txt")
WARNED = {
    "dataloader-warning": "dataloader-workers-exceed-cpus",
    "nccl-info-ib": "gpudirect-rdma-disabled",
    "ray-start": "disk-full-or-quota",
}
"""What the program itself warns of, although the run goes on."""


def _texts(of: Path = TEXTS) -> dict[str, str]:
    """Return the texts by their headings, of harmless ones without the label."""
    parts = (part.split("\n", 1) for part in f"\n{of.read_text()}".split("\n@@@ ")[1:])
    return {heading.removesuffix(" none"): body for heading, body in parts}


def test_what_is_over_expected_or_taught_accuses_nobody_and_its_twins_still_name_the_fault() -> None:
    for heading, text in _texts(INNOCENTS).items():
        causes = [each.cause for each in judged(text.encode()).causes]
        _, _, right = heading.partition(" ")
        assert causes[0] in right.split("|") if right else causes == [], heading


def test_what_came_and_went_often_or_cost_a_job_is_not_over() -> None:
    down, up = "Jun 08 06:0{}:02 n33 kernel: mlx5_core 0000:41:00.0 eth2: Link {}".format, "nfs: server filer1 OK"
    flapping = "\n".join(down(2 * at, "down") + "\n" + down(2 * at + 1, "up") for at in range(4))
    killed = "NAME  READY  STATUS  RESTARTS  AGE\ntrain-0   0/1     OOMKilled   3 (40s ago)   12m\ntrain-0   1/1     Running     4 (5s ago)    13m"
    nfs = f"nfs: server filer1 not responding, still trying\n{up}"
    for text, right in (
        (flapping, "network-link-flapping"),
        (killed, "host-memory-oom"),
        (f"{nfs}\nSince then our job is stuck.", "hung-mount"),
    ):
        assert [each.cause for each in judged(text.encode()).causes][:1] == [right], text
    assert not judged(nfs.encode()).causes


def test_texts_without_a_fault_name_no_cause() -> None:
    texts = _texts()
    named = {name: [each.cause for each in judged(text.encode()).causes][:1] for name, text in texts.items()}
    assert {name: causes[0] for name, causes in named.items() if causes} == WARNED
    assert len(texts) > 90


def test_lines_that_begin_alike_are_not_one_line_that_somebody_broke() -> None:
    lines = "\n".join(
        f"[Gloo] Rank {rank} is connected to 3 peer ranks. Expected number of connected peer ranks is : 3" for rank in range(4)
    )
    assert not judged(lines.encode()).causes
    assert [each.cause for each in judged(lines.replace("connected to 3", "connected to 2").encode()).causes][:1] == [
        "gloo-wrong-interface"
    ]


def test_a_failure_beside_words_of_a_script_or_a_wish_is_still_named() -> None:
    for text, cause in (
        (
            "# without this the build fails\nRUN pip install .\nOSError: CUDA_HOME environment variable is not set.",
            "cuda-toolkit-missing",
        ),
        (
            "ssh n1 'dmesg | grep -c \"fallen off the bus\"'\n[ 9.1] NVRM: GPU at PCI:0000:19:00: GPU has fallen off the bus.",
            "gpu-fallen-off-bus",
        ),
        ("Q: why does it stop?\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "dev-shm-too-small"),
        ("ci: the build failed with `No space left on device`", "disk-full-or-quota"),
        (
            "# added TPUs\n\nGot this error from the pods:\n\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",
            "dev-shm-too-small",
        ),
    ):
        assert [each.cause for each in judged(text.encode()).causes][:1] == [cause], text
