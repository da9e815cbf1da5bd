"""An error that somebody quotes within a sentence: what he says around it tells whether it happened."""

from __future__ import annotations

import io

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt

ERROR = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    "text",
    [
        f"The workshop demonstrates `{ERROR}` with an injected fault.",
        f'self.client.expects(RuntimeError, message="{ERROR}")',
        f'    with pytest.warns(UserWarning, match="{ERROR}"):',
        f"git grep -n '{ERROR}' csrc/",
        f"Our nightly job verifies that a broken node fails with `{ERROR}`.",
        f"The new page tells operators what to do when they see `{ERROR}`.",
        "The nouveau driver is not loaded, nvidia works",
        "# Exit code hidden: OOM not reported by the operator\n\nThe pod shows OOMKilled and exit code 137, and the task is marked as done.",
        f"What is an ECC error?\nThis refers to memory that flipped. Root causes include heat and age.\n{ERROR}\nHow to monitor\nWatch dmesg for it.",
    ],
)
def test_what_nobody_says_to_have_happened_is_no_cause(text: str) -> None:
    assert _named(text) == []


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        (f"The second node prints `{ERROR}` there.", "possible"),
        (f"I started the job and then got `{ERROR}` there.", "certain"),
        (f"Whenever I start training, the worker prints `{ERROR}`.", "certain"),
        (f"The workshop demonstrates `{ERROR}` with an injected fault.\n{ERROR}", "certain"),
        (f"Error message: `{ERROR}`", "certain"),
    ],
)
def test_a_sentence_alone_makes_no_quoted_error_certain(text: str, confidence: str) -> None:
    assert _named(text)[:1] == [("gpu-ecc-uncorrectable", confidence)]


@pytest.mark.parametrize(
    ("typed", "cause"),
    [
        ("# torch not compiled with Cuda Enabled", "cpu-only-build"),
        ("I get CUDA Driver version is Insufficient for cuda runtime version", "driver-too-old"),
        ("modprobe says REQUIRED KEY NOT AVAILABLE", "secure-boot-blocks-module"),
    ],
)
def test_a_message_in_letters_of_ones_own_is_likely_at_most(typed: str, cause: str) -> None:
    first = _named(typed)[0]
    assert first[0] == cause
    assert first[1] != "certain"


def _named(text: str) -> list[tuple[str, str]]:
    given = InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))
    return [(each.cause, each.confidence.value) for each in diagnose([given]).causes]
