"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "whole-numbers-by-double": ("not noticed", "right"),
    "gathered-later-swapped": ("not noticed: torch 2.13's new name alone was called", "right"),
    "never-at-the-barrier": ("right", "right"),
    "link-of-40-mbit": ("right", "right"),
    "complex-saved-real": ("not noticed", "right"),
    "user-of-few-processes": (
        "wrong (`dataloader-worker-killed`), in *dataloader* (the row named *device*)",
        "right, the row mended",
    ),
    "convolutions-slower": (
        "not noticed",
        "right while crowded hosts were judged, too; since they are not, not noticed at a load of 5; right on a quiet one",
    ),
    "norm-after-clipping": ("right", "right"),
    "tail-not-dropped": ("right", "right"),
    "parts-overlap": ("right", "right"),
    "permutation-repeats": ("right", "right"),
    "muon-not-orthogonal": ("not noticed: the row ran *optimizer* alone, *layers* has it", "right, the row mended"),
    "shards-not-let-go": ("wrong (`fsdp-step-wrong`): the row broke the step", "right, the row mended"),
    "epochs-leave-pipes": ("right", "right"),
    "compiled-rsqrt": ("right", "right"),
    "fork-rng-leaks": ("right, in *layers* (the row named *device*)", "right"),
    "memcpy-flips": ("not noticed: torch calls memcpy for so much five times, the row broke nothing", "–"),
    "few-files-on-one": ("wrong (`dataloader-worker-killed`)", "right"),
    "warned-by-the-scheduler": ("not noticed: ranks of the smoke test take SIGUSR1 to write their stacks", "–"),
    "way-back-slower": (
        "not noticed",
        "right by the bound that was tried (1.2), which was given up: it is 2 for one kind of work alone, because healthy ranks differ by up to 1.5",
    ),
    "second-loss-not-scaled": ("not noticed", "right"),
    "weights-of-samples-ignored": ("named rightly in words, as `random-numbers-wrong` (the row's cause does not exist)", "–"),
    "second-derivative-lost": ("right", "–"),
    "shm-read-only": ("right", "–"),
}
