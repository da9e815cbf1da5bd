"""What the program loads before it knows what is wanted, and an interrupt while it loads."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from driven import HOSTS, environment
from packaging.requirements import Requirement

HEAVY = {
    "torch", "jinja2", "psutil", "pynvml", "distro", "asyncio", "importlib.metadata", "subprocess", "dataclasses", "tomllib", "csv",
    "xml.etree.ElementTree", "json", "argparse", "logging", "http", "urllib.request", "email", "ssl", "tempfile", "difflib", "pathlib",
}  # fmt: skip
OURS = {"torchtune_sys.engine", "torchtune_sys.probes", "torchtune_sys.rules", "torchtune_sys.knowledge", "torchtune_sys.render"}
EMPTY_GROUP = "import click\n@click.group()\ndef main(): pass\nmain(['--help'], standalone_mode=False)"
AND_PRINT = "\nimport sys; sys.stderr.write(' '.join(sys.modules))"


def loaded(code: str) -> set[str]:
    found = subprocess.run(
        [sys.executable, "-c", code + AND_PRINT], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr
    return set(found.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import torchtune_sys.cli.main",
        "from torchtune_sys.cli.main import run; run(['--help'])",
        "from torchtune_sys.cli.main import run; run(['--version'])",
        "from torchtune_sys.cli.main import run; run(['check', '--help'])",
    ],
)
def test_help_loads_nothing_but_click(code: str) -> None:
    # What click loads itself differs between versions of Python: that is not ours.
    found = loaded(code) - loaded(EMPTY_GROUP)
    assert not found & HEAVY
    assert not found & OURS


def test_check_loads_no_heavy_module_where_none_is_needed() -> None:
    """On a recording: live, children are started, and psutil may be asked."""
    code = f"from torchtune_sys.cli.main import run\nrun(['check', '--from', {str(HOSTS / 'base-system.json')!r}])"
    found = loaded(code) - loaded("import pathlib, subprocess")
    assert not found & {
        "torch",
        "jinja2",
        "pynvml",
        "asyncio",
        "importlib.metadata",
        "dataclasses",
        "xml.etree.ElementTree",
        "difflib",
        "json",
    }


def test_what_check_does_without() -> None:
    """typing_extensions, which msgspec takes where it is there, and the enums that the module socket makes of the kernel's numbers."""
    asked = ("check", "--from", str(HOSTS / "base-system.json"))
    told = subprocess.run(
        [sys.executable, "-v", "-m", "torchtune_sys", *asked], env=environment(), capture_output=True, text=True, timeout=60
    ).stderr
    assert "import 'msgspec'" in told
    assert "import 'typing_extensions'" not in told
    assert "socket" not in loaded("from torchtune_sys.host.live_queries.basic import refusals; refusals('', 1)")


def test_no_package_that_it_needs_needs_what_msgspec_is_kept_from() -> None:
    """One that needs typing_extensions could not be imported (torchtune_sys/__main__.py)."""
    todo, needed = ["torchtune-sys"], set()
    while todo:
        for each in map(Requirement, requires(todo.pop()) or ()):
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                todo += {each.name} - needed
                needed.add(each.name)
    assert {"msgspec", "click", "markupsafe"} <= {name.lower() for name in needed}
    assert not {name for name in needed if re.sub("[-_.]+", "-", name) == "typing-extensions"}


def test_no_command_is_imported_before_it_is_called() -> None:
    found = loaded("from torchtune_sys.cli.main import run; run(['--help'])")
    assert not [
        name
        for name in found
        if name.startswith("torchtune_sys.cli.")
        and name.rpartition(".")[2] not in ("main", "lazy", "terminal", "watch", "invocation")
    ]


@pytest.mark.parametrize("while_", ["torchtune_sys.host.isolation", "gc", "signal", "click"])
def test_an_interrupt_at_any_import_is_quiet(while_: str) -> None:
    program = f"""
import os, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {while_!r}:
            os.kill(os.getpid(), 2)
sys.modules.pop({while_!r}, None)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["torchtune-sys", "--version"]
from torchtune_sys.__main__ import main
main()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(("ignored", "status"), [(False, -signal.SIGINT), (True, 0)])
def test_an_interrupt_while_the_command_line_loads_is_quiet(tmp_path: Path, ignored: bool, status: int) -> None:
    interrupting = "import os, signal, sys\nsys.path.pop(0)\nos.kill(os.getpid(), signal.SIGINT)\ndel sys.modules['click']\nfrom click import *\nimport click\n"
    (tmp_path / "click.py").write_text(interrupting)
    program = f"import sys; sys.path.insert(1, {str(tmp_path)!r}); sys.argv = ['torchtune-sys', '--version']; from torchtune_sys.__main__ import main; main()"
    handler = signal.SIG_IGN if ignored else signal.default_int_handler
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler) and None,
    )
    assert (found.returncode, found.stderr) == (status, "")
