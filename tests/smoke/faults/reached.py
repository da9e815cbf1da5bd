"""Which of torch's public names a run of the smoke test calls: ``PYTHONPATH=tests python -m smoke.faults.reached [STAGE,…] > docs/smoke-reached.md``.

A profile function in the ranks (and in what they start) notes each function and each class that is made. What C++ calls by itself is not seen. The stages *device* and
*stragglers* are left out: they say that somebody profiles.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from smoke.faults.bench import Bench, torch_python
from smoke.faults.means import patched
from torchtune_sys.smoke.names import stage_names

_LEFT_OUT = ("device", "stragglers")
PLACES = """torch torch.Tensor torch.linalg torch.fft torch.special torch.sparse torch.nested torch.random torch.amp torch.autograd torch.autograd.functional torch.autograd.forward_ad
torch.autograd.graph torch.func torch.nn torch.nn.functional torch.nn.attention torch.nn.init torch.nn.utils torch.nn.utils.parametrizations torch.nn.utils.parametrize torch.nn.utils.rnn
torch.optim torch.optim.lr_scheduler torch.optim.swa_utils torch.distributions torch.utils.data torch.utils.checkpoint torch.nn.parallel torch.distributed torch.distributed.nn.functional
torch.distributed.algorithms.join torch.distributed.device_mesh torch.distributed.tensor torch.distributed.tensor.parallel torch.distributed.fsdp torch.distributed.optim
torch.distributed.pipelining torch.distributed.checkpoint torch.distributed.checkpoint.state_dict"""
_WATCH = """
        import atexit, importlib, inspect, json, os, sys, threading, time
        import torch

        called, codes, objects, kinds, public = set(), {}, {}, {}, {}
        folder, told = %r, [0, 0.0]

        def _public():
            for place in %r.split():
                try:
                    home = torch.Tensor if place == "torch.Tensor" else importlib.import_module(place)
                except Exception:
                    continue
                names = getattr(home, "__all__", None) or [name for name in dir(home) if name[0] != "_"]
                names = {*names, *(dir(torch._C._VariableFunctions) if place == "torch" else ())}
                for name in sorted(one for one in names if one[0] != "_"):
                    one = getattr(home, name, None)
                    if not callable(one) or inspect.ismodule(one) or (isinstance(one, type) and (issubclass(one, BaseException) or place == "torch.Tensor")):
                        continue
                    public.setdefault(place, []).append(name)
                    key = place + "." + name
                    if isinstance(one, type):
                        kinds.setdefault(one, []).append(key)
                    elif inspect.isfunction(one):
                        inner = [cell.cell_contents for cell in one.__closure__ or () if inspect.isfunction(cell.cell_contents)] if one.__code__.co_name == "fn" else [one]
                        wrapped = getattr(one, "__wrapped__", None)
                        for each in inner + ([wrapped] if wrapped is not None and hasattr(wrapped, "__code__") else []):
                            codes.setdefault(each.__code__, []).append(key)
                    else:
                        objects.setdefault(id(one), []).append(key)

        def write():
            with open("%%s/%%d.new" %% (folder, os.getpid()), "w") as file:
                json.dump({"called": sorted(called), "public": public}, file)
            os.replace(file.name, "%%s/%%d.json" %% (folder, os.getpid()))

        def note(frame, event, given):
            if event == "call":
                code = frame.f_code
                called.update(codes.get(code, ()))
                if code.co_name in ("__init__", "forward", "step", "__new__"):
                    called.update(kinds.get(type(frame.f_locals.get("self")), ()))
            elif event == "c_call":
                found = objects.get(id(given))
                if found:
                    called.update(found)
                else:
                    own = getattr(given, "__self__", None)
                    if isinstance(own, torch.Tensor):
                        called.add("torch.Tensor." + given.__name__)
                    elif given in kinds if isinstance(given, type) else False:
                        called.update(kinds[given])
            if len(called) > told[0] and time.monotonic() > told[1] + 1:
                told[:] = [len(called), time.monotonic()]
                write()

        def begin():
            _public()
            atexit.register(write)
            threading.setprofile(note)
            sys.setprofile(note)
        begin()
"""


def reached(stages: str, python: str) -> tuple[dict[str, list[str]], set[str]]:
    """Return torch's public names by their places, and those that ranks called."""
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        notes = Path(folder, "notes")
        notes.mkdir()
        bench = Bench(Path(folder), python)
        patched(_WATCH % (str(notes), PLACES))(bench)
        outcome = bench.run(stages or ",".join(name for name in stage_names() if name not in _LEFT_OUT), 2)
        print(outcome.told, file=sys.stderr)
        told = [json.loads(path.read_text()) for path in notes.glob("*.json")]
    return max((one["public"] for one in told), key=len), {name for one in told for name in one["called"]}


def page(public: dict[str, list[str]], called: set[str]) -> str:
    rows = []
    for place, names in public.items():
        missed = [name for name in names if f"{place}.{name}" not in called]
        rows.append(f"| `{place}` | {len(names)} | {len(names) - len(missed)} | {' '.join(missed)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(*reached("".join(sys.argv[1:]), os.environ.get("TORCHTUNE_SYS_TEST_TORCH") or torch_python())))
