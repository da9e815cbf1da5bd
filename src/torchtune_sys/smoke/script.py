"""Join the worker's modules into one script, without their imports of each other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import TypeGuard

from torchtune_sys import __version__

ORDER = (
    "trust",
    "channel",
    "cgroups",
    "measures",
    "oom_kills",
    "starting",
    "launching",
    "stages.import_torch",
    "context",
    "identity",
    "functions.randomness",
    "stages.process_state",
    "stages.process_settings",
    "stages.arithmetic",
    "stages.operations",
    "functions.operators",
    "functions.numbers",
    "functions.rows",
    "functions.places",
    "functions.products",
    "functions.models",
    "functions.sequences",
    "functions.transforms",
    "functions.recipes",
    "functions.answers_of_functions",
    "functions.answers_of_options",
    "functions.known_answers",
    "stages.layers",
    "functions.seldom_optimizers",
    "stages.optimizers",
    "gpu_health",
    "models",
    "stages.stress",
    "growth",
    "stages.training",
    "grad_scaler",
    "stages.precision",
    "stages.datasets",
    "stages.loading",
    "stages.checkpoint",
    "stages.kept_code",
    "stages.compiled",
    "agreement",
    "interfaces",
    "rendezvous_store",
    "stages.rendezvous",
    "exchanges.collective_table",
    "exchanges.senders",
    "exchanges.punctuality",
    "stages.collectives",
    "stages.equal_ranks",
    "stages.stragglers",
    "integers",
    "stages.ddp_ways",
    "stages.ddp",
    "stages.sampling",
    "stages.sync",
    "stages.ddp_amp",
    "stages.sharded_ways",
    "stages.fsdp",
    "stages.shared_gpu",
    "stages.container",
    "stage_in_copy",
    "table",
    "summary",
    "main",
)
"""Each after those it imports from."""
_PACKAGE = "torchtune_sys.smoke.worker"
_ELSEWHERE = {"trust": "torchtune_sys.host.trust"}
"""Modules that the tool itself uses, too."""
SCRIPT = "torchtune-sys/smoke.py"
"""What the driver calls it. Python looks for modules beside a script: in this folder, which there is not."""
MARK = '#!/usr/bin/env python3\n"""The training smoke test of torchtune-sys'
"""How the script begins, whatever the version."""
_HEAD = (
    MARK
    + ''' {version}: a real training run that checks, stage by stage, everything that training needs.

  python smoke.py                               as many ranks as GPUs, or two on the CPU
  torchrun --nproc-per-node 8 smoke.py          or srun, mpirun: on one host or on many
  python smoke.py --help                        stages, levels

Needs Python 3.8 and torch 2.0, nothing else; makes no connection but those between its ranks. Exit status: 0 all stages passed,
1 one failed, 3 one could not be tried.
"""

from __future__ import annotations
'''
)


def source() -> str:
    """Return the script. Raises ValueError where two modules define the same name: joined, the later one would win."""
    paths = [_ELSEWHERE.get(module, f"{_PACKAGE}.{module}").rpartition(".") for module in ORDER]
    modules = [(package, module) for package, _, module in paths]
    return _HEAD.format(version=__version__) + joined(modules, future=False)


def joined(modules: Iterable[tuple[str, str]], *, future: bool = True) -> str:
    """Return the modules, each by its package and its name, as one text that imports none of them. ``future``: with the import that must come first.

    Raises ValueError where two define the same name.
    """
    owners: dict[str, str] = {}
    parts = ["from __future__ import annotations\n"] if future else []
    for package, module in modules:
        text = (files(package) / f"{module}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        for name in _defined(tree):
            if owners.setdefault(name, module) != module:
                raise ValueError(f"{name} is defined in {owners[name]} and in {module}")
        parts.append(f"\n# ---- {module} ----\n" + _without_own_imports(text, tree))
    return "".join(parts)


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (one.id for target in node.targets for one in ast.walk(target) if _is_stored(one))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    """Whether a part of a target is a name that it binds: one of several, too."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _without_own_imports(text: str, tree: ast.Module) -> str:
    """Return the module's lines but for its imports of this package and of the future, and (only the last one ends the script) its
    docstring becomes a comment by itself: a string that nobody reads."""
    lines = text.splitlines(keepends=True)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module == "__future__" or (node.module or "").startswith("torchtune_sys.")):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "".join(lines).strip("\n") + "\n"
