"""Ranks without an import of torch each (2.5 CPU seconds on a slow core): who starts them imports it once, and they are forked.

Their parent, numbers, descriptors, streams, session and environment are those that they would have had, and so is the state in which a fault is planted:
right after ``import torch``. With ``./run test --all`` each rank is an interpreter of its own.
"""

from __future__ import annotations

from pathlib import Path

from conftest import TIER

FORKING = '''
import functools
import gc
import importlib
import importlib.util
import marshal
import os
import sys

ALSO = ()


def _fork_ranks():
    """In a process that starts ranks: the smoke test's launcher, a test by hand, torchrun."""
    import subprocess
    import threading

    class Forked(subprocess.Popen):
        def __init__(self, args, *more, **options):
            given = {name for name, value in options.items() if value is not None}
            env = options.get("env") or {}
            is_rank = not more and "RANK" in env and list(args[:2]) == [sys.executable, "-u"]
            worth = "torch" in sys.modules or env.get("LOCAL_WORLD_SIZE") != "1"
            if not is_rank or not worth or given - {"env", "pass_fds", "start_new_session", "stdout", "stderr"} or not _import_torch(env):
                super().__init__(args, *more, **options)
                return
            self.args, self.returncode, self._child_created = args, None, True
            self.stdin = self.stdout = self.stderr = None
            self._waitpid_lock = threading.Lock()
            code = _code(args[2])
            sys.stdout.flush()
            sys.stderr.flush()
            self.pid = os.fork()
            if not self.pid:
                try:
                    _become_rank(code, args, **options)
                finally:
                    os._exit(1)

    subprocess.Popen = Forked


def _import_torch(env):
    """As the rank would: OpenMP reads its variables when it is loaded."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in env.items() if name.startswith(("OMP_", "MKL_", "KMP_", "TORCH_"))})
    try:
        for name in ("torch", *ALSO):
            importlib.import_module(name)
    except BaseException:
        return False
    finally:
        os.environ.clear()
        os.environ.update(before)
    gc.freeze()  # what the ranks' collections need not look at, and so does not become their own
    return True


@functools.lru_cache(None)
def _code(path):
    """Return the code of a script, or what was compiled of it."""
    with open(path, "rb") as file:
        text = file.read()
    if text.startswith(importlib.util.MAGIC_NUMBER):
        return marshal.loads(text[16:])
    return compile(text, path, "exec")


def _become_rank(code, args, env, pass_fds=(), start_new_session=False, stdout=None, stderr=None):
    import ctypes
    import io
    import signal
    import traceback
    import types

    if start_new_session:
        os.setsid()
    for number, stream in ((1, stdout), (2, stderr)):
        if stream is not None:
            os.dup2(stream if isinstance(stream, int) else stream.fileno(), number)
    for handle in map(int, os.listdir("/proc/self/fd")):
        if handle > 2 and handle not in pass_fds:
            try:
                os.close(handle)
            except OSError:
                pass
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    # What /proc/PID/environ shows lies between two addresses on the stack (proc_pid_stat(5), fields 50 and 51), and nothing reads it any more.
    with open("/proc/self/stat") as file:
        begin, end = map(int, file.read().rpartition(")")[2].split()[47:49])
    rows = sorted(os.environb.items(), key=lambda pair: not pair[0].startswith((b"RANK", b"TORCHTUNE_SYS_TEST")))
    ctypes.memmove(begin, b"".join(b"%b=%b\\0" % pair for pair in rows)[: end - begin].ljust(end - begin, b"\\0"), end - begin)
    for name in ("stdout", "stderr"):
        number = 1 if name == "stdout" else 2
        setattr(sys, name, io.TextIOWrapper(open(number, "wb", 0, closefd=False), write_through=True, errors=getattr(sys, name).errors))
    sys.argv = list(args[2:])
    for name in [name for name in sys.modules if name.startswith("sitecustomize_")]:
        del sys.modules[name]
    try:
        with open(__file__) as file:
            exec(compile(file.read(), __file__, "exec"), {"__name__": "sitecustomize", "__file__": __file__})
        sys.path[0] = os.path.dirname(sys.argv[0])
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__ = sys.argv[0]
        exec(code, main.__dict__)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write("%s\\n" % end.code)
        os._exit(end.code if isinstance(end.code, int) else end.code is not None)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if not os.environ.get("RANK"):
    _fork_ranks()
'''
"""Text of a sitecustomize.py."""


def forking(folder: Path, *also: str) -> dict[str, str]:
    """The variable by which a test by hand, torchrun or the driver forks its ranks. ``also``: modules that they import anyway, where no fault is planted."""
    if TIER == "all":
        return {}
    place = folder / "forking"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(FORKING.replace("ALSO = ()", f"ALSO = {also!r}"))
    return {"PYTHONPATH": str(place)}


TRAINING = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp")
"""What the first optimizer imports, and a model that is sharded."""
