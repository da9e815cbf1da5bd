"""Meters of training loops: steps that wait for data most of their time are told, whoever prints them."""

from __future__ import annotations

import pytest

from torchtune_sys.diagnosis import slowness
from torchtune_sys.diagnosis.text.lines import lines_of

FORMS = {
    "torch's ImageNet example": "Epoch: [0][{n}/5004]\tTime  {step:.3f} ({step:.3f})\tData  {data:.3f} ({data:.3f})\tLoss 6.9 (6.9)",
    "timm": "Train: 0 [ {n}/1251 (  4%)]  Loss: 6.9 (6.9)  Time: {step:.3f}s,  159.0/s  ({step:.3f}s,  150.3/s)  LR: 1.0e-06  Data: {data:.3f} ({data:.3f})",
    "mmengine": "Epoch(train) [1][{n}/2000]  lr: 1.0e-03  eta: 3 days  time: {step:.4f}  data_time: {data:.4f}  memory: 5333  loss: 1.2",
    "mmcv": "Epoch [1][{n}/2000] lr: 1e-3, eta: 3 days, time: {step:.3f}, data_time: {data:.3f}, memory: 5333, loss: 1.2",
    "detectron2": "eta: 2 days  iter: {n}  total_loss: 2.1  time: {step:.4f}  data_time: {data:.4f}  lr: 1e-4  max_mem: 8000M",
    "DETR": "Epoch: [0]  [  {n}/5004]  eta: 5:10:00  lr: 0.000100  loss: 6.9  time: {step:.4f}  data: {data:.4f}  max mem: 10768",
    "PaddlePaddle": "epoch: 1 step: {n} loss: 2.3 reader_cost: {data:.5f} s, batch_cost: {step:.5f} s, ips: 42.3",
    "one's own": "load_data_time: {data:.4f}, train_step_time: {rest:.4f}",
    "another's own": "step {n} data {data:.2f}s fwd {half:.2f}s bwd {half:.2f}s",
}


def _named(text: str) -> list[str]:
    lines = {"x": lines_of(enumerate(text.split("\n"), 1))}
    return [candidate.cause for symptom in slowness.symptoms_of(lines) for candidate in symptom.candidates]


def _log(form: str, data: float, step: float) -> str:
    rest = step - data
    return "\n".join(form.format(n=n, data=data, step=step, rest=rest, half=rest / 2) for n in (50, 100, 150, 200))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_steps_that_wait_for_data_are_told(form: str) -> None:
    assert _named(_log(form, data=2.2, step=2.5)) == ["slow-data-storage"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_steps_that_compute_are_not(form: str) -> None:
    assert _named(_log(form, data=0.2, step=2.5)) == []


def test_some_steps_that_wait_long_outweigh_many_that_do_not() -> None:
    form = "load_data_time: {data}, train_step_time: 0.66"
    assert _named("\n".join(form.format(data="19.61" if n == 3 else "0.0001") for n in range(8))) == ["slow-data-storage"]


def test_the_first_step_starts_the_workers_and_does_not_count() -> None:
    form = FORMS["DETR"]
    lines = [form.format(n=n, data=90.0 if n == 0 else 0.01, step=95.0 if n == 0 else 0.4) for n in (0, 50, 100, 150, 200)]
    assert _named("\n".join(lines)) == []
