"""Rules on environment variables whose values CUDA or PyTorch interpret differently than intended."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchtune_sys.model.numbers import natural
from torchtune_sys.model.version import version

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

_BOOLEAN = (
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
)
_OTHER = (
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "roundup_bypass_threshold_mb",
    "backend",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "per_process_memory_fraction",
    "large_segment_size_mb",
)
_SINCE = {"expandable_segments": (2, 1), "backend": (2, 0)}
"""First torch release that takes the option; an older one raises."""


_LONGEST = 4000
"""Characters of the allocator's settings that are read: all of its options together take a quarter of that."""


def _pairs(value: str) -> list[tuple[str, str | None]]:
    """``name:value`` pairs; a bracketed list is one value. None: there is no colon."""
    pairs: list[tuple[str, str | None]] = []
    depth = 0
    part = ""
    if len(value) > _LONGEST:
        value = value[:_LONGEST].rpartition(",")[0]
    for character in value + ",":
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            name, colon, rest = part.partition(":")
            pairs.append((name.strip(), rest.strip() if colon else None))
            part = ""
        else:
            part += character
    return pairs


def allocator_faults(value: str, torch: str | None) -> list[str]:
    """Return why the allocator would raise; an option that is not known here is left to :func:`unknown_allocator_names`.

    >>> allocator_faults("expandable_segments:True,max_split_size_mb:512", "2.11.0")
    []
    >>> allocator_faults("max_split_size_mb=512", None)
    ["'max_split_size_mb=512' is no name:value"]
    >>> allocator_faults("expandable_segment:True", None)
    ['there is no option expandable_segment (expandable_segments?)']
    >>> allocator_faults("backend:native,", "2.4.0"), allocator_faults(",backend:native", "2.4.0"), allocator_faults(",backend:native", "2.13.0")
    ([], ['an empty entry'], [])
    """
    if not value.strip():
        return []
    found = []
    pairs = _pairs(value)
    if len(pairs) > 1 and pairs[-1] == ("", None):
        pairs.pop()  # each release passes over a comma at the end
    for name, setting in pairs:
        if setting is None:
            if name or len(pairs) == 1 or _reads_by_release(torch) < _TOKENIZED:
                found.append(f"{name!r} is no name:value" if name else "an empty entry")
        elif name in _BOOLEAN + _OTHER:
            found += _setting_faults(name, setting, torch)
        elif near := _near(name):
            found.append(f"there is no option {name} ({near}?)")
    return found


def unknown_allocator_names(value: str) -> list[str]:
    """Return the options that are in no list here and resemble none: newer than this table, or wrong."""
    return [name for name, setting in _pairs(value) if setting is not None and name not in _BOOLEAN + _OTHER and not _near(name)]


def _near(name: str) -> str:
    return _nearest(name, _BOOLEAN + _OTHER)


def _nearest(name: str, names: tuple[str, ...]) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.82)), "")


def _setting_faults(name: str, setting: str, torch: str | None) -> list[str]:
    since = _SINCE.get(name)
    if since and torch and version(torch)[:2] < since:
        return [f"{name} came with torch {since[0]}.{since[1]}; this is {torch}"]
    if name in _BOOLEAN:
        return [] if setting in ("True", "False") else [f"{name} takes True or False"]
    if name in _LEAST_MB:
        least = _LEAST_MB[name] + (name == "max_split_size_mb" and _reads_by_release(torch) < _TOKENIZED)
        number = _leading(setting)
        return [] if number is not None and not 0 <= number < least else [f"{name} must be a whole number of at least {least}"]
    if name in _POWERS:
        return [] if all(map(_is_power_of_two, _divisions(setting))) else [f"{name} takes powers of two"]
    if name in ("garbage_collection_threshold", "per_process_memory_fraction"):
        return [] if _between(setting, 0.0, 1.0, name != "garbage_collection_threshold") else [f"{name} must lie between 0 and 1"]
    if name == "backend":
        return [] if setting in ("native", "cudaMallocAsync", "hipMallocAsync") else ["backend is native or cudaMallocAsync"]
    return []


_TOKENIZED = (2, 9)
"""The release whose allocators read their settings by c10/core/AllocatorConfig.h: it skips empty entries, and takes 20 MiB (kLargeBuffer) itself."""
_LEAST_MB = {"max_split_size_mb": 20, "max_non_split_rounding_mb": 20, "large_segment_size_mb": 11}
_POWERS = ("roundup_power2_divisions", "pinned_num_register_threads")


def _reads_by_release(torch: str | None) -> tuple[int, ...]:
    """Return the release; one that is not told may be any, and nothing is held against what some release takes."""
    return version(torch)[:2] if torch else _TOKENIZED


def _leading(text: str) -> int | None:
    """Return the number that std::stoull and stoi read: what follows the digits is ignored, and a negative one is a huge one.

    >>> _leading("64MB"), _leading(" 20"), _leading("-1"), _leading("lots")
    (64, 20, -1, None)
    """
    found = re.match(r"\s*([+-]?[0-9]{1,18})", text)
    return int(found[1]) if found else None


def _divisions(setting: str) -> list[int | None]:
    """Return the numbers of ``8``, or those behind the colons of ``[256:1,512:2,>:8]``, where 0 rounds nothing and counts as 1."""
    if not setting.startswith("["):
        return [_leading(setting)]
    parts = setting.strip("[]").split(",")
    return [_leading(part.partition(":")[2]) or (1 if part.partition(":")[2].strip() == "0" else None) for part in parts]


def _is_power_of_two(number: int | None) -> bool:
    return number is not None and number > 0 and number & (number - 1) == 0


def _between(text: str, low: float, high: float, closed: bool) -> bool:
    found = re.match(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", text, re.I)  # as std::stod reads it
    if found is None:
        return False
    number = float(found[0])
    return low < number < high or (closed and number in (low, high))


_LOGS = (
    "all annotation aot aot_graphs aot_graphs_effects aot_joint_graph async_compile auto_chunker autograd autotuning benchmarking bytecode c10d "
    "cache caching compiled_autograd compiled_autograd_verbose compute_dependencies cudagraph_static_inputs cudagraphs ddp ddp_graphs "
    "dist_c10d dist_ddp dist_fsdp distributed dtensor dynamic dynamo export fake_tensor fsdp fusion graph graph_breaks graph_code "
    "graph_code_verbose graph_region_expansion graph_sizes guards hierarchical_compile incremental inductor inductor_metrics ir_post_fusion "
    "ir_pre_fusion kernel_code loop_ordering loop_tiling native_dsl node_runtime_estimation not_implemented onnx onnx_diagnostics output_code "
    "overlap overlap_scheduling perf_hints post_grad_graphs pp pre_grad_graphs recompiles recompiles_verbose schedule side_effects sym_node "
    "torch trace_bytecode trace_call trace_shape_events trace_source verbose_guards"
)
_LOG_LEVELS = ("debug", "info", "warn", "warning", "error", "critical", "verbose", "true", "false", "on", "off", "none")
_LOG_NAMES = r"([+-]?[\w.]+,\s*)*[+-]?[\w.]+"


def torch_logs_fault(value: str) -> str:
    """Return why ``import torch`` fails with this TORCH_LOGS, ``""`` where nothing is known against it: a name that is in no list here may
    be a module's, or came with a newer release.

    >>> torch_logs_fault("+dynamo, -inductor,torch.fx,mine"), torch_logs_fault("+dynamo,inductr")
    ('', 'there is no log inductr (inductor?)')
    >>> torch_logs_fault("dynamo=DEBUG"), torch_logs_fault("DEBUG")
    ('names are separated by commas, each with + or - before it or nothing', 'DEBUG is not a log: + or - before a name sets its level')
    """
    if not value:
        return "an empty value is no list of logs"
    if value in ("help", "+help"):
        return "torch prints the names of its logs and ends"
    if not re.fullmatch(_LOG_NAMES, value):
        return "names are separated by commas, each with + or - before it or nothing"
    logs = tuple(_LOGS.split())
    for name in (part.strip().lstrip("+-") for part in value.split(",")):
        if name.lower() in _LOG_LEVELS or natural(name) is not None:
            return f"{name} is not a log: + or - before a name sets its level"
        if name not in logs and "." not in name and (near := _nearest(name, logs)):
            return f"there is no log {name} ({near}?)"
    return ""


_SWITCHES = (
    *("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    *("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_CUDA_EVENT_CACHE", "TORCH_NCCL_NAN_CHECK"),
    *("TORCH_NCCL_HIGH_PRIORITY", "TORCH_NCCL_BCAST_UNIQUEID", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"),
    *("TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING"),
)
_NUMBERS = (
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_FR_BUFFER_SIZE"),
    *("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_COORD_CHECK_MILSEC"),
    "TORCH_NCCL_RANKS_PER_ROOT",
)
_WHOLE = r"\s*[+-]?0*([0-9]+)"
_TRUTH = ("y", "yes", "1", "t", "true", "n", "no", "0", "f", "false")


def process_group_faults(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables for which ProcessGroupNCCL raises *Invalid value for environment variable*, and what each takes. A number is read as
    std::stoi does: what follows its digits is ignored.

    >>> process_group_faults({"TORCH_NCCL_BLOCKING_WAIT": "on", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "true", "TORCH_NCCL_NAN_CHECK": "True"})
    [('TORCH_NCCL_BLOCKING_WAIT', '1 or 0'), ('TORCH_NCCL_ASYNC_ERROR_HANDLING', 'a whole number')]
    >>> process_group_faults({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30m", "TORCH_NCCL_COORD_CHECK_MILSEC": ""})
    [('TORCH_NCCL_COORD_CHECK_MILSEC', 'a whole number')]
    """
    wrong = [(name, "1 or 0") for name in _SWITCHES if name in env and env[name].lower() not in _TRUTH]
    for name in (each for each in _NUMBERS if each in env):
        found = re.match(_WHOLE, env[name])
        if found is None or len(found[1]) > 10 or int(found[1]) > 2**31 - 1:
            wrong.append((name, "a whole number"))
    return wrong


_INTEGERS = (
    *("TORCHDYNAMO_REPRO_LEVEL", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_MIN_NUM_SPLIT"),
    *("TORCHINDUCTOR_FILE_LOCK_TIMEOUT", "TORCHINDUCTOR_CPP_MIN_CHUNK_SIZE", "TORCHINDUCTOR_CPP_GEMM_MAX_K_SLICES"),
    *("TORCHINDUCTOR_ORIGAMI_TOPK", "TORCH_DIST_INIT_BARRIER"),
)


def integer_faults(env: Mapping[str, str]) -> list[str]:
    """Return the variables that torch's Python reads by int(), which refuses their value.

    >>> integer_faults({"TORCHINDUCTOR_COMPILE_THREADS": "auto", "TORCHDYNAMO_REPRO_LEVEL": " 3 ", "TORCHINDUCTOR_MIN_NUM_SPLIT": ""})
    ['TORCHINDUCTOR_COMPILE_THREADS', 'TORCHINDUCTOR_MIN_NUM_SPLIT']
    """
    return [name for name in _INTEGERS if name in env and whole(env[name]) is None]


def whole(text: str) -> int | None:
    """Return the number that Python's int() makes of a short text; None where it refuses it."""
    sign, digits = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text.strip().removeprefix("+"))
    number = natural(digits)
    return None if number is None else sign * number
