"""The worker as one script."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from smoke.faults.forked import forked
from torchtune_sys.errors import UserError
from torchtune_sys.preflight.joint.rank import PARTS
from torchtune_sys.smoke import names, script

WORKER = Path(script.__file__).parent / "worker"


def test_every_module_is_in_the_script() -> None:
    modules = {
        ".".join(path.relative_to(WORKER).with_suffix("").parts) for path in WORKER.rglob("*.py") if path.stem != "__init__"
    }
    assert modules == set(script.ORDER) - {"mounted", "trust"}, "ORDER in smoke/script.py names the modules of smoke/worker/"


def test_it_is_python_3_8_and_imports_torch_and_the_standard_library_only() -> None:
    tree = ast.parse(script.source(), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    strangers = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert strangers == {"torch"}
    used = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert not used & {"functools.cache", "math.lcm", "math.nextafter", "random.randbytes", "ast.unparse"}, (
        "Python 3.9 brought it"
    )


def imported_by(module: str) -> set[str]:
    """The worker's modules that one of them imports."""
    place = WORKER if module not in ("mounted", "trust") else WORKER.parents[1] / "host"
    tree = ast.parse((place / f"{module.replace('.', '/')}.py").read_text())
    return {
        (node.module or "").removeprefix("torchtune_sys.smoke.worker.").removeprefix("torchtune_sys.host.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtune_sys")
    }


def test_modules_come_after_those_they_import() -> None:
    for place, module in enumerate(script.ORDER):
        late = sorted(imported_by(module) - set(script.ORDER[:place]))
        assert not late, f"{module} imports {', '.join(late)}, which ORDER in smoke/script.py has not named before it"


def test_no_module_is_there_for_nothing() -> None:
    """A stage that is in the script and not in the table would never run."""
    used = {name for module in script.ORDER for name in imported_by(module)}
    idle = [name for name in script.ORDER if name not in used and name != "main"]
    assert idle == [], "a stage has its row in smoke/worker/table.py"


def parts_of_scripts() -> dict[str, list[tuple[str, str]]]:
    """The modules of each script that is joined, each by its package and its name."""
    paths = [script._ELSEWHERE.get(module, f"{script._PACKAGE}.{module}").rpartition(".") for module in script.ORDER]
    return {"smoke": [(package, module) for package, _, module in paths], "rank": [*PARTS]}


def tree_of(package: str, module: str) -> ast.Module:
    return ast.parse((files(package) / f"{module}.py").read_text())


def defined(tree: ast.Module) -> set[str]:
    """The names that a module binds at its top, one of several at once, too."""
    stored = {
        node.id
        for statement in tree.body
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return stored | {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("which", ["smoke", "rank"])
def test_no_name_is_defined_by_two_modules(which: str) -> None:
    """Joined, the later one would win without a word."""
    owners: dict[str, str] = {}
    for package, module in parts_of_scripts()[which]:
        for name in sorted(defined(tree_of(package, module))):
            assert owners.setdefault(name, module) == module, f"{name} is defined in {owners[name]} and in {module}"
    assert len(owners) > 10


def test_names_of_one_assignment_are_seen_each() -> None:
    """Two modules each defined one of several names at once, and the later one won."""
    assert defined(ast.parse("ONE, (OTHER, *REST) = 1, (2, 3)\nkept.value = held[0] = 4\n")) == {"ONE", "OTHER", "REST"}


@pytest.mark.essential
@pytest.mark.parametrize("which", ["smoke", "rank"])
def test_nothing_but_own_imports_is_left_out(which: str) -> None:
    """They are found by their words, as to parse the modules takes each start half a second."""

    def own(node: ast.stmt) -> bool:
        return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("__future__", "torchtune_sys")

    modules = parts_of_scripts()[which]
    wanted = [ast.dump(node) for part in modules for node in tree_of(*part).body if not own(node)]
    assert [ast.dump(node) for node in ast.parse(script.joined(modules, future=False)).body] == wanted


def test_without_torch_it_says_so_in_one_line(tmp_path: Path) -> None:
    """An interpreter that has no torch: isolated from everything but its own library."""
    place = tmp_path / "smoke.py"
    place.write_text(script.source())
    done = subprocess.run([sys.executable, "-I", "-S", str(place)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("the smoke test cannot import torch in ") and "No module named 'torch'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_hides_the_standard_library_is_named(tmp_path: Path) -> None:
    """Whatever runs before the first stage needs no module of which users have a namesake; this torch needs one, as the real one does."""
    (tmp_path / "smoke.py").write_text(script.source())
    (tmp_path / "random.py").write_text("def dice(): return 4\n")
    (tmp_path / "torch.py").write_text("from random import Random\n")
    done = subprocess.run([sys.executable, "-S", str(tmp_path / "smoke.py")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("the smoke test cannot import torch in ")
    assert f"{tmp_path}/random.py hides a module of the standard library" in done.stderr


def test_stages_are_named_in_their_order() -> None:
    assert names.stage_names()[:2] == ("import", "device")
    assert len(set(names.stage_names())) == len(names.stage_names()) >= 15
    assert names.named(["gemm,device", "gemm"]) == ("gemm", "device")


def test_a_name_that_there_is_not_gets_a_hint() -> None:
    with pytest.raises(UserError) as caught:
        names.named(["gem"])
    assert "did you mean gemm?" in caught.value.todo


def test_every_stage_says_what_it_proves_and_stands_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "smoke.md").read_text()
    table = guide.partition("| stage |")[2].partition("Exact tests")[0]
    told = {word for line in table.splitlines()[2:] for word in line.split("|")[1:2] for word in word.replace(",", " ").split()}
    assert told == {*names.stages()}, "the table of stages in docs/smoke.md has a row for each of smoke/worker/table.py"
    assert all(proof.endswith(".") for proof in names.stages().values()), names.stages()


_ENDED = """
import os, signal
os.dup2(os.open("errors", os.O_WRONLY | os.O_CREAT), 2)
count = [3]
memory_kills = lambda: count[0]
say_why_when_ended()
count[0] += %d
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, 1])
def test_without_a_driver_a_rank_that_torchrun_ends_says_that_memory_ran_out(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = forked(_ENDED % kills)
    assert ended.signal == signal.SIGTERM, ended
    assert ("[host-memory-oom]" in (tmp_path / "errors").read_text()) == bool(kills)
