"""Secrets of which no line holds more than a piece (docs/attacks.md)."""

from __future__ import annotations

import json
import shutil
import subprocess
import time

import pytest

from torchtune_sys.host.secrets.filter import scrubbed

SECRET = "q7Wz3LkP9vXc5Rt1Yb8Nm4Hd6Gf2Js0A"
TYPED = f"export HF_TOKEN=hf_{SECRET}"
PLAIN = "RuntimeError: CUDA error: out of memory\n"


def recorded(kind: str) -> str:
    return "".join(
        json.dumps([place * 0.1, kind, key]) + "\n" for place, key in enumerate(["$ ls\r\n", *TYPED, "\r\n", "a.py\r\n"])
    )


def pieces(text: str) -> set[str]:
    return {SECRET[place : place + 4] for place in range(len(SECRET) - 3)} & {
        text[place : place + 4] for place in range(len(text))
    }


@pytest.mark.parametrize("kind", ["i", "o"])
def test_keys_of_a_recorded_terminal(kind: str) -> None:
    text = scrubbed(PLAIN + recorded(kind) + PLAIN)
    keys = "".join(json.loads(line)[2] for line in text.split("\n") if line.startswith("["))
    assert not pieces(keys) and text.startswith(PLAIN) and text.count("\n") == (PLAIN + recorded(kind) + PLAIN).count("\n")
    assert kind == "i" or "a.py" in text


@pytest.mark.parametrize("margin", ["", "    ", "> "])
@pytest.mark.parametrize("words", ["xxd", "xxd -c 8", "hexdump -C", "hexdump", "od -c", "od -t x1", "od -x", "od -A x -t x1z"])
def test_columns_of_a_dump(words: str, margin: str) -> None:
    if shutil.which(words.split()[0]) is None:
        pytest.skip(f"{words.split()[0]} is not installed")
    data = f"starting the job\n{TYPED}\nstep 1: the loss is 2.5\n".encode()
    dump = subprocess.run(words.split(), input=data, capture_output=True, check=True).stdout.decode()
    dump = "".join(margin + line for line in dump.splitlines(keepends=True))
    text = scrubbed(PLAIN + dump + PLAIN)
    assert text.count("hidden-by-torchtune-sys") >= 2 and text.split("\n")[1] == dump.split("\n")[0]
    hidden = {line for line in dump.split("\n") if line and line not in text}
    assert len(hidden) >= 2 and scrubbed(PLAIN + dump.replace(dump, "") + PLAIN) == PLAIN * 2


@pytest.mark.parametrize(
    "rows",
    [
        f"| NAME | VALUE |\n| HF_TOKEN | hf_{SECRET[:16]}\n{SECRET[16:]} |\n",
        f"| NAME     | VALUE  |\n| HF_TOKEN | hf_{SECRET[:16]} |\n|          | {SECRET[16:]} |\n",
        f"│ password │ {SECRET[:16]} │\n│          │ {SECRET[16:]} │\n",
        f"| HF_TOKEN | hf_{SECRET[:10]} |\n|          | {SECRET[10:20]} |\n|          | {SECRET[20:]} |\n",
        f"| HF_TOKEN | hf_{SECRET[:10]}\n{SECRET[10:20]}\n{SECRET[20:]} |\n",
    ],
)
@pytest.mark.parametrize(
    "before",
    [
        "",
        "    ",
        "> ",
        "[rank0]: ",
        "2026-11-30T08:00:00Z ",
        "Nov 30 08:00:0{} node-1 app[12]: ",
        "\x1b[36m(x pid=1)\x1b[0m ",
        "app-1  | ",
    ],
)
def test_a_cell_that_goes_on_below(rows: str, before: str) -> None:
    text = PLAIN + "".join(before.format(number) + line + "\n" for number, line in enumerate(rows.splitlines())) + PLAIN
    found = scrubbed(text)
    assert not pieces(found) and found.count("\n") == text.count("\n") and found.startswith(PLAIN) and found.endswith(PLAIN)


@pytest.mark.parametrize(
    "text",
    [
        '[0.1, "o", "epoch 1\\r\\n"]\n[0.2, "o", "loss 2.5\\r\\n"]\n',
        "00000000: 6570 6f63 6820 310a                      epoch 1.\n",
        "| NVIDIA-SMI 550.54 | CUDA 12.4 |\n|  0  H100 | 80GB |\n| N/A 31C P0 | 1MiB /\n 81559MiB |\n",
        "0000:18:00.0 3D controller: NVIDIA\n0000:19:00.0 3D controller: NVIDIA\n",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert scrubbed(PLAIN + text) == PLAIN + text


def test_time_in_proportion() -> None:
    def seconds(times: int) -> float:
        text = (recorded("o") + "00000000: 6570 6f63 6820 310a  epoch 1.\n| a | b\n c |\n") * times
        started = time.process_time()
        scrubbed(text)
        return time.process_time() - started

    seconds(5)
    assert seconds(400) < 8 * seconds(100) + 0.2
