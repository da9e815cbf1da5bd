"""Join the worker's modules into one script, without their imports of each other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files

from torchtune_sys import __version__

ORDER = (
    "mounted",
    "trust",
    "channel",
    "cgroups",
    "measures",
    "oom_kills",
    "starting",
    "launching",
    "stages.import_torch",
    "context",
    "exchange_names",
    "functions.wide_ranges",
    "functions.edges",
    "functions.guards",
    "identity",
    "functions.tried",
    "functions.randomness",
    "stages.process_state",
    "stages.process_settings",
    "functions.convolutions",
    "stages.arithmetic",
    "stages.operations",
    "functions.inputs",
    "functions.operators",
    "functions.table_of_operators",
    "functions.numbers",
    "functions.rows",
    "functions.places",
    "functions.products",
    "functions.models",
    "functions.combined",
    "functions.sequences",
    "functions.transforms",
    "functions.recipes",
    "functions.answers_of_functions",
    "functions.answers_of_options",
    "functions.known_answers",
    "functions.other_ways",
    "functions.seldom_answers",
    "functions.seldom_called",
    "stages.layers",
    "functions.seldom_optimizers",
    "functions.parameter_groups",
    "stages.optimizers",
    "gpu_health",
    "models",
    "stages.stress",
    "growth",
    "stages.training",
    "grad_scaler",
    "stages.precision",
    "stages.datasets",
    "worker_reasons",
    "stages.loading",
    "module_state",
    "stages.checkpoint",
    "stages.kept_code",
    "stages.compiled",
    "agreement",
    "interfaces",
    "rendezvous_store",
    "stages.rendezvous",
    "exchanges.seldom_exchanges",
    "exchanges.collective_table",
    "exchanges.senders",
    "exchanges.punctuality",
    "stages.collectives",
    "stages.equal_ranks",
    "product_times",
    "cpu_turns",
    "stages.stragglers",
    "integers",
    "stages.ddp_ways",
    "stages.ddp",
    "stages.sampling",
    "stages.sync",
    "stages.ddp_amp",
    "stages.sharded_ways",
    "stages.pipelines",
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
_ELSEWHERE = {"mounted": "torchtune_sys.host.mounted", "trust": "torchtune_sys.host.trust"}
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
1 one failed, 3 one could not be tried or checked.
"""

from __future__ import annotations
'''
)


_OWN_IMPORT = re.compile(r"^from (?:__future__|torchtune_sys\.[\w.]+) import (?:\([^)]*\)|[^(\n]+)$", re.MULTILINE)


def source() -> str:
    """Return the script. That no two of its modules define the same name, of which the later one would win, is a test's concern: to parse them takes a start half a second."""
    paths = [_ELSEWHERE.get(module, f"{_PACKAGE}.{module}").rpartition(".") for module in ORDER]
    modules = [(package, module) for package, _, module in paths]
    return _HEAD.format(version=__version__) + joined(modules, future=False)


def joined(modules: Iterable[tuple[str, str]], *, future: bool = True) -> str:
    """Return the modules, each by its package and its name, as one text that imports none of them. ``future``: with the import that must come first."""
    parts = ["from __future__ import annotations\n"] if future else []
    for package, module in modules:
        text = (files(package) / f"{module}.py").read_text(encoding="utf-8")
        parts.append(f"\n# ---- {module} ----\n" + _OWN_IMPORT.sub("", text).strip("\n") + "\n")
    return "".join(parts)
