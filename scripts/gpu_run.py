"""Everything of this project that needs a GPU, in order of value: ``./run gpu``.

Each step takes less than ten minutes and leaves a file in .gpu/results; a second run goes on with what is not there. At the end one
JSON without names of the machine, and the row for docs/verified.md. Nothing is changed on the machine, and nothing is made up: without
a GPU it says so and ends with status 3.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_steps import STEPS, Step

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".gpu"
SCHEMA = "torchtune-sys/gpu-run/1"
_OUTPUT = 200_000


def tool_of(python: str) -> str:
    """Make an interpreter of that Python's version that finds the tool, however it isolates itself (root's run takes no PYTHONPATH).

    The packages come from the folder that was prepared where there is a network, else from ``python`` itself.
    """
    folder = PLACE / "venv"
    own = folder / "bin" / "python"
    where = "import sys, sysconfig; print(sysconfig.get_path('purelib')); print(sys.version)"

    def say(interpreter: object) -> list[str]:
        return subprocess.run([str(interpreter), "-c", where], capture_output=True, text=True, check=True).stdout.splitlines()

    packages, version = say(python)[:2]
    if not own.exists() or say(own)[1] != version:
        subprocess.run([python, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    site = PLACE / "site"
    paths = [str(ROOT / "src"), str(site) if site.exists() else packages]
    (Path(say(own)[0]) / "torchtune_sys_gpu_run.pth").write_text("\n".join([*paths, ""]))
    return str(own)


def missing(python: str, tool: str) -> str:
    """What stands in the way; "" where nothing does."""
    for interpreter, what, code in (
        (
            python,
            "torch with a GPU",
            "import torch; assert torch.cuda.is_available(), 'torch %s sees no GPU' % torch.__version__",
        ),
        (tool, "the tool's own packages", "import torchtune_sys.cli.main, msgspec, click, jinja2, psutil, distro, pynvml"),
    ):
        done = subprocess.run([interpreter, "-I", "-c", code], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            hint = "" if what.startswith("torch") else f"; where there is a network: ./run gpu --prepare --python {python}"
            return f"{python} lacks {what}: {last}{hint}"
    return ""


def done_already(path: Path, key: str) -> bool:
    try:
        return bool(json.loads(path.read_text())["key"] == key)
    except (OSError, ValueError, KeyError):
        return False


@contextlib.contextmanager
def injected(step: Step, python: str) -> Iterator[dict[str, str]]:
    """The step's environment, with its files in their place and its other process at work."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, text in step.files.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        added = {name: value.replace("{folder}", str(folder)) for name, value in step.environment.items()}
        if step.beside:
            other = stack.enter_context(subprocess.Popen([python, "-c", step.beside], stdout=subprocess.PIPE))
            stack.callback(other.kill)
            assert other.stdout is not None
            other.stdout.readline()
        yield added


def run_step(step: Step, names: dict[str, str], key: str) -> dict[str, Any]:
    """Run it, and return what came of it. One that takes too long is ended, and says so."""
    began = time.monotonic()
    with injected(step, names["python"]) as added:
        status, output, errors, ended = _ended(step, names, added)
    try:
        report: Any = json.loads(output)
    except ValueError:
        report = output[-_OUTPUT:]
    return {
        "key": key,
        "step": step.name,
        "settles": step.settles,
        "status": status,
        "ended": ended,
        "seconds": round(time.monotonic() - began, 1),
        "report": report,
        "errors": errors[-4000:],
    }


def _ended(step: Step, names: dict[str, str], added: dict[str, str]) -> tuple[int, str, str, str]:
    child = subprocess.Popen(
        [word.format(**names) for word in step.argv],
        env=os.environ | added,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = child.communicate(timeout=step.limit_s)
        return child.returncode, output, errors, "ended"
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
        child.terminate()
        try:
            output, errors = child.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            output, errors = child.communicate()
        if isinstance(why, KeyboardInterrupt):
            raise
        return child.returncode, output, errors, f"not through after {step.limit_s:.0f} s"


def verdict(step: Step, result: dict[str, Any]) -> str:
    """In words, for the table."""
    report = result["report"]
    stages = report.get("stages", ()) if isinstance(report, dict) else ()
    failed = [f"{stage['stage']}: {stage['cause'] or 'no cause'}" for stage in stages if stage["verdict"] not in ("pass", "na")]
    if result["ended"] != "ended":
        return str(result["ended"])
    if not step.healthy:
        return f"named {', '.join(failed[:2])}" if failed else "NOT NOTICED"
    if failed:
        return f"FALSE ALARM? {', '.join(failed[:3])}"
    return "passed" if result["status"] == 0 else f"status {result['status']}"


def pseudonymised(text: str, secrets: Sequence[str]) -> str:
    """Without the names of the machine, its users, its addresses and its GPUs. Equal names stay equal within one file.

    >>> pseudonymised("node7: GPU-8f1c2a3b-0000-1111-2222-333344445555 at 10.1.2.3 of /home/ada/x", ["node7", "ada"])
    'machine: GPU-1 at address-1 of /home/user/x'
    """
    for secret, word in zip(secrets, ("machine", *["user"] * len(secrets)), strict=False):
        if len(secret) > 2:
            text = re.sub(rf"(?<![\w-]){re.escape(secret)}(?![\w-])", word, text)
    for pattern, word in (
        (r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "GPU"),
        (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "id"),
        (r"\b(?:[0-9a-f]{2}:){5,}[0-9a-f]{2}\b", "mac"),
        (r"\b(?!127\.0\.0\.)(?:\d{1,3}\.){3}\d{1,3}\b(?![-.\w])", "address"),
    ):
        seen: dict[str, int] = {}
        for found in dict.fromkeys(re.findall(pattern, text, re.IGNORECASE)):
            seen.setdefault(found, len(seen) + 1)
        for found, number in sorted(seen.items(), key=lambda item: -len(item[0])):
            text = text.replace(found, f"{word}-{number}")
    return text


def machine(python: str) -> dict[str, Any]:
    code = (
        "import json, platform, torch; n = torch.cuda.device_count();"
        "print(json.dumps({'gpus': [torch.cuda.get_device_name(i) for i in range(n)], 'torch': torch.__version__,"
        "'cuda': torch.version.cuda, 'python': platform.python_version(), 'kernel': platform.release(),"
        "'nccl': '.'.join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else ''}))"
    )
    told: dict[str, Any] = json.loads(
        subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=300, check=True).stdout
    )
    words = ["nvidia-smi", "--query-gpu=driver_version,uuid", "--format=csv,noheader"]
    rows = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout.splitlines()
    told["driver"] = rows[0].split(",")[0] if rows else ""
    told["id"] = hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()[:12]
    return told


def table(about: dict[str, Any], results: Sequence[tuple[Step, dict[str, Any]]]) -> str:
    gpus = f"{len(about['gpus'])} x {about['gpus'][0]}" if about["gpus"] else "no GPU"
    head = f"{gpus}, driver {about['driver']}, torch {about['torch']}, NCCL {about['nccl']}, Python {about['python']}"
    rows = [f"| {step.name} | {step.settles} | {verdict(step, result)} | {result['seconds']:.0f} s |" for step, result in results]
    return "\n".join([f"### {head}", "", "| step | settles | result | took |", "|---|---|---|---|", *rows, ""])


def prepare(python: str) -> int:
    """With a network: the tool and what it needs, for that Python, in a folder that can be carried."""
    words = [python, "-m", "pip", "install", "-q", "--upgrade", "--target", str(PLACE / "site"), str(ROOT)]
    return subprocess.run(words, check=False).returncode


def interrupt(python: str) -> int:
    """SIGINT in the middle of a run; then nobody may hold memory of a GPU who did not before."""
    words = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    before = set(subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout.split())
    argv = [tool_of(python), "-m", "torchtune_sys", "smoke", "--python", python, "--no-proof", "--quick"]
    child = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(10)
    child.send_signal(2)
    child.wait(60)
    time.sleep(3)
    left = set(subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout.split()) - before
    print(json.dumps({"status": child.returncode, "processes that are left on the GPU": len(left)}))
    return bool(left)


def main(steps: Sequence[Step] = STEPS) -> int:
    parser = argparse.ArgumentParser(prog="./run gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with a CUDA torch [the one that runs this]")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    parser.add_argument("--again", action="append", default=[], metavar="STEP", help="run a step once more")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="run no other step")
    parser.add_argument("--prepare", action="store_true", help="with a network: put the tool's packages into .gpu/site")
    parser.add_argument("-o", "--output", type=Path, default=PLACE / "result.json")
    parser.add_argument("--interrupt", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.list:
        print("".join(f"{step.name:<22}{step.settles} (at most {step.limit_s:.0f} s)\n" for step in steps), end="")
        return 0
    if asked.prepare:
        return prepare(asked.python)
    if asked.interrupt:
        return interrupt(asked.python)
    strange = {*asked.only, *asked.again} - {step.name for step in steps}
    if strange:
        parser.error(f"no step is called {', '.join(sorted(strange))}; --list names them")
    PLACE.mkdir(exist_ok=True)
    tool = tool_of(asked.python)
    hindrance = missing(asked.python, tool)
    if hindrance:
        print(f"./run gpu: nothing was run: {hindrance}", file=sys.stderr)
        return 3
    chosen = [step for step in steps if step.name in asked.only] if asked.only else steps
    return run_all(chosen, asked.python, tool, set(asked.again), asked.output)


def run_all(steps: Sequence[Step], python: str, tool: str, again: set[str], output: Path) -> int:
    about = machine(python)
    key = hashlib.sha256(json.dumps([about, _sources()]).encode()).hexdigest()[:16]
    folder = PLACE / "results"
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "smoke.py"
        names = {"python": python, "tool": tool, "script": str(script), "self": __file__}
        subprocess.run([tool, "-m", "torchtune_sys", "generate", "smoke", "-o", str(script)], cwd=ROOT, check=True, timeout=120)
        for number, step in enumerate(steps, 1):
            path = folder / f"{step.name}.json"
            if step.name in again or not done_already(path, key):
                print(f"[{number}/{len(steps)}] {step.name}: {step.settles} …", file=sys.stderr, flush=True)
                path.write_text(json.dumps(run_step(step, names, key)))
            results.append((step, json.loads(path.read_text())))
            print(f"[{number}/{len(steps)}] {step.name}: {verdict(*results[-1])}", file=sys.stderr, flush=True)
    secrets = [socket.gethostname(), os.environ.get("USER", ""), Path.home().name]
    whole = json.dumps({"schema": SCHEMA, "machine": about, "steps": [result for _, result in results]}, indent=1)
    output.write_text(pseudonymised(whole, secrets) + "\n")
    print(table(about, results))
    print(f"./run gpu: {output} has no names of this machine; docs/gpu.md says where to send it", file=sys.stderr)
    return 0


def _sources() -> str:
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
