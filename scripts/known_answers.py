"""Writes down what torch answers (src/torchtune_sys/smoke/worker/functions/answers_of_*.py), where several releases agree.

    V24/bin/python scripts/known_answers.py ask newest.json                          # which trials fit which names, and what comes out
    V20/bin/python scripts/known_answers.py ask oldest.json --after newest.json      # the same trials under another release
    python scripts/known_answers.py write newest.json oldest.json …

The first is the release whose names are taken; a name stays if each release that has it gives the same in float64, and the same but for rounding in
float32. ``ask`` needs torch and nothing else, so it runs in any environment with a release of torch (scripts/try_torch.py makes them).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
PLACE = SOURCE / "torchtune_sys/smoke/worker/functions"
ROUNDING = {"d": 2**-30, "dt": 2**-30, "f": 2**-17, "ft": 2**-17, "b": 2**-7, "h": 2**-9, "sd": 2**-30, "sf": 2**-15}
"""An eighth, or less, of what known_answers.py lets pass."""
LEFT_OUT = (
    "rand", "normal", "bernoulli", "multinomial", "poisson", "drop", "rrelu", "gumbel", "fractional", "cauchy", "exponential", "geometric", "log_normal", "uniform",  # draws
    "empty", "resize", "as_strided_", "put_", "set_", "share", "storage", "pin_memory", "data_ptr", "record_stream", "from_", "frombuffer", "asarray", "dlpack",  # memory as it was, or shared
    "seed", "save", "load", "jit", "compile", "determin", "rng", "fork", "import", "init", "export", "register", "retain", "requires_grad", "backward", "apply", "map_", "grad", "thread",  # the process
    "func", "vmap", "autocast", "profil", "debug", "version", "module", "typename", "obj", "candidate", "result_type", "promote", "can_cast", "get_", "is_tensor", "memory", "stream",
    "quant", "q_", "fake", "sparse", "_mm", "smm", "hspmm", "crow", "ccol", "row_ind", "col_ind", "coalesce", "indices", "int_repr", "dequant", "names", "rename", "align", "refine", "to_",
    "mkldnn", "cudnn", "miopen", "xpu", "hpu", "mps", "ipu", "vulkan", "mtia", "cuda", "cpu", "fbgemm", "native", "_foreach", "unsafe", "sym_",
    "svd", "qr", "eig", "ldl", "lu", "lobpcg", "lowrank", "geqrf", "ormqr", "orgqr", "householder", "lstsq", "rnn", "gru", "lstm", "stft", "hann", "multi_head", "ctc", "segment", "cond", "while",
)  # fmt: skip
"""Parts of names. The factors of a matrix have no one sign."""
BUT = [
    "where",
    "relu",
    "relu_",
    "relu6",
    "celu",
    "selu",
    "elu",
    "gelu",
    "prelu",
    "glu",
    "leaky_relu",
    "leaky_relu_",
    "silu",
    "celu_",
    "selu_",
    "elu_",
    "flip",
    "fliplr",
    "flipud",
    "flatten",
    "unflatten",
    "slogdet",
    "broadcast_to",
    "column_stack",
]
BUT += [
    "numpy",
    "to",
    "poisson_nll_loss",
    "cumulative_trapezoid",
    "index_put",
    "index_put_",
    "mvlgamma",
    "multigammaln",
    "solve_ex",
    "values",
    "is_nonzero",
    "is_complex",
    "is_signed",
    "scaled_dot_product_attention",
]
ORDERS = [
    "sort",
    "argsort",
    "topk",
    "kthvalue",
    "median",
    "nanmedian",
    "mode",
    "argmax",
    "argmin",
    "max",
    "min",
    "cummax",
    "cummin",
    "unique",
    "unique_consecutive",
    "msort",
]
"""What picks one of several that are alike has no one answer."""


def worker() -> types.ModuleType:
    """Return known_answers.py, whether or not there are answers yet."""
    sys.path.insert(0, str(SOURCE))
    for name, lists in (("functions", ("FUNCTIONS",)), ("options", ("OPTIONS", "RECIPES"))):
        blank: Any = types.ModuleType(f"torchtune_sys.smoke.worker.functions.answers_of_{name}")
        for one in lists:
            setattr(blank, f"ANSWERS_OF_{one}", "")
        sys.modules[blank.__name__] = blank
    from torchtune_sys.smoke.worker.functions import known_answers

    return known_answers


def names_of(known: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every name that torch has for something to call, behind the letter of its place."""
    for letter, (_, home) in known.HOMES.items():
        for name in sorted(dir(home)):
            ways = getattr(home, name, None)
            kept = name in BUT or not any(part in name for part in LEFT_OUT)
            if kept and not name.startswith("_") and callable(ways) and not isinstance(ways, type):
                yield f"{letter}.{name}", ways


def fitting(known: Any, way: Callable[..., Any], trial: Any, options: Any) -> Any:
    """Return the answer in float64 where it is one: quick, the same twice, and the same in float32."""
    import torch

    def numbers(dtype: torch.dtype) -> torch.Tensor:
        found: torch.Tensor = known.numbers_of(way(*known.laid(trial, dtype), **options))
        return found

    try:
        numbers(torch.float64)  # the first call prepares what the others have
        began = time.thread_time()
        one, two = numbers(torch.float64), numbers(torch.float64)
        quick = time.thread_time() - began < 0.02  # of the processor's time: a busy machine proposes the same
        low = numbers(torch.float32)
    except Exception:  # whatever a function says of what it does not take
        return None
    alike = one.shape == two.shape == low.shape and torch.equal(one, two) and one.numel() <= 3000
    near = alike and abs(known.summed(one) - known.summed(low)) <= ROUNDING["f"] * max(known.size_of(one), 0.1)
    return one if quick and near else None


def propose(known: Any) -> Iterator[str]:
    """Yield name, trial and options: for each name the two trials that tell most, and each option that changes an answer."""
    import torch

    given = known.trials()
    starts = [number for number, one in enumerate(given) if len(one) == 1]
    for name, way in names_of(known):
        fit: list[tuple[int, int, Any]] = []
        for number, trial in enumerate(given):
            if name.startswith("T.") and not isinstance(trial[0], torch.Tensor):
                continue
            if name[2:].rstrip("_") in ORDERS and starts[1] <= number < starts[4]:
                continue
            found = fitting(known, way, trial, {})
            if found is not None:
                same = isinstance(trial[0], torch.Tensor) and torch.equal(found, known.numbers_of(trial[0]))
                flat = found.numel() < 2 or not float(found.std()) > 0
                fit.append((flat + 2 * same, number, found))
        fit.sort(key=lambda one: one[:2])
        kept = (
            fit[:1]
            + [
                one
                for one in fit[1:]
                if one[0] <= max(1, fit[0][0])
                and abs(known.summed(one[2]) - known.summed(fit[0][2])) > 1e-6
                and (len(given[one[1]]) != len(given[fit[0][1]]) or one[2].numel() != fit[0][2].numel())
            ][:1]
        )
        yield from (f"{name} {number}" for _, number, _ in kept)
        for option, options in enumerate(known.OPTIONS):
            for _, number, found in [*kept, *fit[1:4]] if options and not name.startswith("T.") else ():
                other = fitting(known, way, given[number], options)
                if other is not None and (
                    other.numel() != found.numel() or abs(known.summed(other) - known.summed(found)) > 1e-6
                ):
                    yield f"{name} {number}.{option}"
                    break


def asked(known: Any, key: str, given: Any) -> dict[str, Any]:
    """Return the sum, the size and the count of each way, or nothing where it refuses."""
    import torch

    name, _, place = key.partition(" ")
    number, _, option = place.partition(".")
    trial, options = given[int(number)], known.OPTIONS[int(option or 0)]
    way = getattr(known.HOMES[name[0]][1], name[2:], None)
    found: dict[str, Any] = {}
    for letter in ROUNDING:
        try:
            if letter[0] == "s":
                values = known.slope_of(lambda *one: way(*one, **options), known.laid(trial, known.KINDS[letter[1]]))
            else:
                values = known.numbers_of(way(*known.laid(trial, known.KINDS[letter[0]], letter.endswith("t")), **options))
            found[letter] = (known.summed(values), known.size_of(values), values.numel())
        except Exception:  # not in this release, or not in this precision
            continue
    assert torch.get_default_dtype() == torch.float32
    return found


def ask(place: Path, after: Path | None) -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = worker()
    keys = list(json.loads(after.read_text())["functions"]) if after else list(propose(known))
    given = known.trials()
    told: dict[str, Any] = {"functions": {key: asked(known, key, given) for key in keys}, "recipes": {}}
    for name, _, work in known.recipes():
        assert name not in told["recipes"], name
        try:
            values = known.numbers_of(work())
            told["recipes"][name] = (known.summed(values), known.size_of(values), values.numel())
        except Exception:  # an older release
            continue
    place.write_text(json.dumps(told))


def off(one: list[float], other: list[float]) -> float:
    return abs(one[0] - other[0]) / max(one[1], other[1], 0.1) if one[2] == other[2] else 9.0


def agreed(told: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield place, sum, gradients' sum, ways and name of what all agree on."""
    for key, ways in told[0].items():
        others = [one[key] for one in told if one.get(key)]

        def holds(letter: str, ways: Any = ways, others: Any = others) -> bool:
            right = ways.get("sd" if letter[0] == "s" else "d")
            found = [off(right, one[letter]) for one in others if letter in one] if right else []
            return bool(found) and max(found) <= ROUNDING[letter]

        if not (holds("d") and holds("f")):
            continue
        name, _, place = key.partition(" ")
        slope = f"{ways['sd'][0]:.9g}" if holds("sd") and holds("sf") and ways["sd"][1] > 0 else "-"
        tried = ("t" if holds("dt") and holds("ft") else "f") + "".join(letter for letter in "bh" if holds(letter)) + "d"
        yield place, f"{ways['d'][0]:.10g}", slope, tried, name


def folded(parts: list[str]) -> str:
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) > 155:
            lines[-1] += ";"
            lines.append("")
        lines[-1] += f"; {part}" if lines[-1] else part
    return "\n".join(lines)


def write(told: list[dict[str, Any]]) -> None:
    groups: dict[tuple[str, ...], list[str]] = {}
    for *what, name in agreed([one["functions"] for one in told]):
        groups.setdefault(tuple(what), []).append(name)
    rows = sorted(groups.items(), key=lambda row: (int(row[0][0].partition(".")[0]), row[0][0]))
    parts = [" ".join((*what, *sorted(names, key=lambda name: ("ftlsxT".index(name[0]), name)))) for what, names in rows]
    recipes = [
        f"{name} {right[0]:.10g}"
        for name, right in told[0]["recipes"].items()
        if max(off(right, one["recipes"][name]) for one in told if name in one["recipes"]) <= 2**-23
    ]
    plain = [part for part in parts if "." not in part.split()[0]]
    for kind, lists in (
        ("functions", {"FUNCTIONS": plain}),
        ("options", {"OPTIONS": [part for part in parts if part not in plain], "RECIPES": recipes}),
    ):
        path = PLACE / f"answers_of_{kind}.py"
        pieces = path.read_text().split('"""')  # what lies between stays as it is
        for name, values in lists.items():
            at = next(number for number, piece in enumerate(pieces) if piece.rstrip().endswith(f"ANSWERS_OF_{name} ="))
            pieces[at + 1] = f"\n{folded(values)}\n"
        path.write_text('"""'.join(pieces))
    print(sum(map(len, groups.values())), "names,", len(groups), "answers,", len(recipes), "recipes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)
    asks = kinds.add_parser("ask")
    asks.add_argument("file", type=Path)
    asks.add_argument("--after", type=Path)
    kinds.add_parser("write").add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    if given.what == "ask":
        ask(given.file, given.after)
    else:
        write([json.loads(path.read_text()) for path in given.files])


if __name__ == "__main__":
    main()
