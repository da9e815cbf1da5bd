"""The layers hold, and the tools that guard them notice when they do not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources and the contract, to plant things in."""
    shutil.copytree(REPO / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    return tmp_path


def tool(name: str) -> str:
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        pytest.skip(f"{name} is not installed beside {sys.executable}")
    return str(found)


def layers(copy: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(copy / "src")}
    return subprocess.run([tool("lint-imports"), "--no-cache"], cwd=copy, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.long
def test_layers_hold(copy: Path) -> None:
    assert layers(copy).returncode == 0, layers(copy).stdout


@pytest.mark.sampled(2, 6)
@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("rules/memory/main_memory.py", "import torchtune_sys.host.live"),
        ("rules/memory/main_memory.py", "import torchtune_sys.probes.memory"),
        ("probes/memory/probe.py", "import torchtune_sys.rules.memory"),
        ("model/values.py", "import torchtune_sys.knowledge"),
        ("model/values.py", "import torchtune_sys.engine"),
        ("engine.py", "import torchtune_sys.render"),
        ("formats/smbios.py", "import torchtune_sys.host"),
        ("formats/smbios.py", "import torchtune_sys.knowledge"),
        ("knowledge/xid.py", "import torchtune_sys.host"),
        ("evidence/limits.py", "import torchtune_sys.probes"),
        ("diagnosis/text/lines.py", "import torchtune_sys.diagnosis.causes"),
        ("diagnosis/causes.py", "import torchtune_sys.render"),
        ("remediation/install/plan.py", "import torchtune_sys.remediation.plan"),
        ("remediation/plan/steps.py", "import torchtune_sys.remediation.apply"),
        ("remediation/apply/undo.py", "import torchtune_sys.render"),
        ("render/text.py", "import torchtune_sys.smoke"),
        ("smoke/driver.py", "import torchtune_sys.cli"),
        ("fleet/store.py", "import torchtune_sys.preflight"),
        ("fleet/comparing.py", "import torchtune_sys.cli"),
        ("rules/memory/main_memory.py", "import time"),
        ("host/live.py", "import click"),
        ("cli/__init__.py", "import jinja2"),
    ],
)
def test_a_forbidden_import_breaks_the_contract(copy: Path, module: str, forbidden: str) -> None:
    place = copy / "src/torchtune_sys" / module
    place.write_text(place.read_text() + f"\n{forbidden}\n")
    found = layers(copy)
    assert found.returncode != 0
    assert "BROKEN" in found.stdout


def figures() -> ModuleType:
    found = spec_from_file_location("house_figures", REPO / "scripts/house_figures.py")
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_no_module_imports_itself_by_way_of_others(copy: Path) -> None:
    """Imports inside functions count, too."""
    shape, root = figures(), copy / "src/torchtune_sys"
    assert shape.circles(shape.imports(root)) == []
    for other in (path for path in root.iterdir() if path.is_dir() and path.name != "host"):
        shutil.rmtree(other)
    (root / "host/base.py").write_text(
        (root / "host/base.py").read_text() + "\n\ndef planted():\n    from torchtune_sys.host import recorded\n"
    )
    (loop,) = shape.circles(shape.imports(root))
    assert {"torchtune_sys.host.base", "torchtune_sys.host.recorded"} <= loop


@pytest.mark.parametrize("top", ["src", "tests"])
def test_no_folder_holds_more_than_thirty_modules(top: str) -> None:
    counts = Counter(path.parent for path in (REPO / top).rglob("*.py") if path.name != "__init__.py")
    full = {str(folder.relative_to(REPO)): count for folder, count in counts.items() if count > 30}
    assert not full, f"{full}: put it into the module of its subject, or move some modules into a folder of their own"


def test_a_package_that_no_layer_names_breaks_the_contract(copy: Path) -> None:
    (copy / "src/torchtune_sys/stray").mkdir()
    (copy / "src/torchtune_sys/stray/__init__.py").touch()
    assert layers(copy).returncode != 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("line", ["import subprocess", "import os\nprint(os.environ)", "import socket", "import torch"])
def test_a_rule_that_reaches_past_the_door_is_refused_by_the_linter(copy: Path, line: str) -> None:
    place = copy / "src/torchtune_sys/rules/memory/main_memory.py"
    place.write_text(place.read_text() + f"\n{line}\n")
    found = subprocess.run(
        [tool("ruff"), "check", "--no-cache", "--select", "TID251", "src"], cwd=copy, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 1
    assert "TID251" in found.stdout


def exists(name: str) -> bool:
    """Whether a page's name of a file leads to one: ``<family>`` stands for each family of rules, other angle brackets for any name."""
    families = [path.parent.name for path in (REPO / "src/torchtune_sys/rules").glob("*/__init__.py")]
    patterns = {re.sub("<[^>]*>", "[!_]*", name.replace("<family>", family)) for family in families}
    places = [REPO, REPO / "src/torchtune_sys", REPO / "tests", REPO / "scripts"]
    return any(any(place.glob(pattern)) for pattern in patterns for place in places)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_that_the_pages_send_people_to_exist(page: str) -> None:
    named = set(re.findall(r"`([a-z_.<>/-]+/[A-Za-z0-9_.<>*-]+\.(?:py|md|csv|json))`", (REPO / page).read_text()))
    assert len(named) > 3
    assert [name for name in sorted(named) if not exists(name)] == []


def test_the_page_lists_each_module_of_diagnosis() -> None:
    table = (REPO / "docs/architecture.md").read_text().partition("\n### Diagnosis\n")[2].partition("\n## ")[0]
    listed = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")}
    assert listed == {path.stem for path in (REPO / "src/torchtune_sys/diagnosis").rglob("*.py")} - {"__init__"}


def test_rules_read_numbers_in_ascii_alone() -> None:
    """``isdigit`` is true of "²", which int() refuses, and ``\\d`` of digits that NCCL, glibc and libgomp do not read as such."""
    files = {path: path.read_text() for path in (REPO / "src/torchtune_sys/rules").rglob("*.py")}
    assert len(files) > 100
    assert [path.name for path, text in files.items() if re.search(r"\\d|\.is(?:digit|decimal|numeric)\b", text)] == []
