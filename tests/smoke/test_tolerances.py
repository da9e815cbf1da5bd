"""What the smoke test tolerates lies between rounding and the smallest fault that it must see; its data has the answers it claims."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from smoke.faults.bench import torch_python
from torchtune_sys.smoke.script import source

pytestmark = pytest.mark.exhaustive

_ASKED = """
import json, sys
import torch
import torch.nn.functional as functional

torch.set_num_threads(1)
import smoke_under_test as smoke

here = smoke.RankContext(level="default", scratch=".", device="cpu", backend="", expected={})
found = {}

STEP = torch.optim.SGD.step
def losses(dtype, without=0):
    calls = []
    def step(self, *args, **more):
        calls.append(1)
        return None if len(calls) == without else STEP(self, *args, **more)
    torch.optim.SGD.step = step
    scaler = smoke.new_scaler(here, 2.0**8, 1000) if dtype == torch.float16 else None
    return smoke._losses(here, dtype, scaler)
def away(one, other):
    return max(abs(left - right) for left, right in zip(one, other))
plain = losses(torch.float32)
found["away"] = {
    str(dtype): [tolerance, away(plain, losses(dtype)), *(away(plain, losses(dtype, lost)) for lost in range(1, smoke._STEPS_FOLLOWED + 1))]
    for dtype, tolerance in smoke._AWAY.items()
}
torch.optim.SGD.step = STEP

def gradients(gelu):
    real, functional.gelu = functional.gelu, gelu
    level, here.level = here.level, "thorough"
    held = [trial.eager[1] for trial in smoke._trials(here)]
    functional.gelu, here.level = real, level
    return held
gelu = functional.gelu
exact = gradients(gelu)
rounded = gradients(lambda hidden, **_: gelu(hidden.double()).float())
rough = gradients(lambda hidden, **_: gelu(hidden, approximate="tanh"))
def worst(held):
    return [
        max(float((found[name] - one).abs().max() / one.abs().max()) for name, one in wanted.items())
        for found, wanted in zip(held, exact)
    ]
found["compiled"] = [smoke._AWAY_COMPILED, worst(rounded), worst(rough)]

pictures, answers = smoke.bars(64, 9)
found["bars"] = [[(picture[0] >= 1).nonzero().tolist(), answer] for picture, answer in zip(pictures, answers.tolist())]
words, before = smoke.sentences(64, 9)
found["sentences"] = [words.tolist(), before.tolist()]

terms = []
for stride in (1, 2):
    side = 16 // (3 - stride)
    pictures = smoke.small_integers((2, 8, side, side), 3, -1, 2)
    weight, bias = smoke.small_integers((8, 8, 3, 3), 4, -1, 2), smoke.small_integers((8,), 5, -1, 2)
    upstream = smoke.small_integers((2, 8, 8, 8), 6, -1, 2)
    padded = functional.pad(pictures, (1, 1, 1, 1)).tolist()
    w, up = weight.tolist(), upstream.tolist()
    output, to_weight, to_bias = torch.zeros(2, 8, 8, 8), torch.zeros(8, 8, 3, 3), torch.zeros(8)
    to_input = torch.zeros(2, 8, side + 2, side + 2)
    for n in range(2):
        for y in range(8):
            for x in range(8):
                patch = slice(y * stride, y * stride + 3), slice(x * stride, x * stride + 3)
                part = torch.tensor(padded[n])[:, patch[0], patch[1]]
                for k in range(8):
                    output[n, k, y, x] = (part * weight[k]).sum() + bias[k]
                    to_weight[k] += part * up[n][k][y][x]
                    to_input[n, :, patch[0], patch[1]] += weight[k] * up[n][k][y][x]
                    to_bias[k] += up[n][k][y][x]
    wanted = (output, to_input[:, :, 1:-1, 1:-1], to_weight, to_bias)
    said = smoke._by_unfolding(pictures, weight, bias, upstream, stride)
    terms.append([bool(torch.equal(one.double(), other)) for one, other in zip(wanted, said)])
    terms[-1].append(max(float(one.abs().max()) for one in said))
found["convolutions"] = terms

tree = {"a": torch.tensor([1.0, 2.0]), "b": [1, {"c": torch.tensor([3.0])}], "d": 0.5}
def other(**changes):
    return smoke.differing_leaves(tree, {**tree, **changes})
found["leaves"] = [
    other(),
    other(a=torch.tensor([1.0, 2.0 + 2.0**-22])),
    other(b=[1, {"c": torch.tensor([float("nan")])}]),
    other(b=[1]),
    other(d=0.25),
    smoke.differing_leaves(tree, {"a": tree["a"]}),
]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("tolerances")
    python = torch_python()
    (folder / "smoke_under_test.py").write_text(source())
    (folder / "asked.py").write_text(_ASKED)
    done = subprocess.run([python, "asked.py"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_any_one_step_left_out_is_seen_and_rounding_is_not(found: dict[str, Any], dtype: str) -> None:
    tolerance, rounding, *lost = found["away"][dtype]
    assert rounding < tolerance / 4
    assert len(lost) == 20
    assert min(lost) > 1.5 * tolerance


def test_an_approximated_activation_is_seen_and_rounding_is_not(found: dict[str, Any]) -> None:
    tolerance, rounding, rough = found["compiled"]
    assert len(rounding) == len(rough) == 2
    assert min(rounding) > 0 and max(rounding) < tolerance / 8
    assert min(rough) > 2 * tolerance


def test_bars_lie_as_the_answer_says(found: dict[str, Any]) -> None:
    """Lying: one row; standing: one column; falling: rows and columns grow together; rising: rows shrink as columns grow."""
    seen = set()
    for pixels, answer in found["bars"]:
        rows, columns = zip(*sorted(pixels, key=lambda place: (place[1], place[0])), strict=True)
        assert len(pixels) == 4
        steps = {(rows[at + 1] - rows[at], columns[at + 1] - columns[at]) for at in range(3)}
        assert steps == {{0: (0, 1), 1: (1, 0), 2: (1, 1), 3: (-1, 1)}[answer]}
        seen.add(answer)
    assert seen == {0, 1, 2, 3}


def test_the_answer_to_a_word_is_the_word_before(found: dict[str, Any]) -> None:
    for words, answers in zip(*found["sentences"], strict=True):
        assert answers == [words[0], *words[:-1]]
        assert len(words) == 8 and {*words} <= {*range(8)}


def test_convolutions_are_compared_with_what_the_definition_gives(found: dict[str, Any]) -> None:
    for output, to_input, to_weight, to_bias, largest in found["convolutions"]:
        assert output and to_input and to_weight and to_bias
        assert 4 < largest <= 256  # exact in bfloat16, and large enough that a lost factor shows


def test_what_differs_between_two_checkpoints_is_named(found: dict[str, Any]) -> None:
    assert found["leaves"] == [[], ["a"], ["b.1.c"], ["b"], ["d"], [".b", ".d"]]
