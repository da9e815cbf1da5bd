"""Tables of names and numbers, entry by entry: each one says something about the world that no other entry says."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from altered import DENIED, FAIL, NA, PASS, UNKNOWN, altered, asked, lines, result, verdict, with_env

from conftest import HOSTS, load
from torchtune_sys.model.facts.network import CounterGrowth
from torchtune_sys.model.facts.python import LoadedLink
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.amounts import size
from torchtune_sys.rules.environment.values import allocator_faults, unknown_allocator_names
from torchtune_sys.rules.pci import links


def torch_of(seen: Snapshot, version: str) -> Snapshot:
    assert not isinstance(seen.python, Missing)
    assert not isinstance(seen.python.torch, Missing)
    return altered(seen, python__torch=msgspec.structs.replace(seen.python.torch, version=version))


# --- amounts


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1023, "1023 bytes"),
        (1 << 10, "1 KiB"),
        ((1 << 20) - 1, "1024 KiB"),
        (1 << 20, "1 MiB"),
        ((1 << 30) - 1, "1024 MiB"),
        (1 << 30, "1 GiB"),
        ((1 << 40) - 1, "1024 GiB"),
        (1 << 40, "1 TiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_each_unit_begins_where_the_one_below_ends(count: int, text: str) -> None:
    assert size(count) == text


# --- variables

TOOLS = (
    "/usr/local/cuda/compute-sanitizer/libInterceptorInjectionTarget.so",
    "/opt/tools/libsanitizer-collection.so",
    "/opt/nvidia/nsight-compute/target/linux-desktop-glibc_2_11_3-x64/libTreeLauncherTargetInjection.so",
    "/usr/lib/gcc/x86_64-linux-gnu/13/libasan.so",
    "/usr/lib/x86_64-linux-gnu/libtsan.so.2",
    "/usr/lib/x86_64-linux-gnu/libubsan.so.1",
    "/opt/nvidia/nsight-systems/target-linux-x64/libToolsInjection64.so",
    "/opt/cuda-10.2/cuda-memcheck/libInjection.so",
    "/usr/libexec/valgrind/vgpreload_core-amd64-linux.so",
)


@pytest.mark.parametrize("library", TOOLS)
def test_tools_that_preload_a_library(healthy: Snapshot, library: str) -> None:
    assert lines(with_env(healthy, {"LD_PRELOAD": library}), "tool-injection-left") == [("LD_PRELOAD", FAIL)]


@pytest.mark.parametrize("library", ["/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libiomp5.so", ""])
def test_preloaded_libraries_that_are_no_tools(healthy: Snapshot, library: str) -> None:
    assert verdict(with_env(healthy, {"LD_PRELOAD": library}), "tool-injection-left") is PASS


OF_TORCH = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
}
OF_TRANSFORMERS = dict.fromkeys(("TRANSFORMERS_CACHE", "PYTORCH_TRANSFORMERS_CACHE", "PYTORCH_PRETRAINED_BERT_CACHE"), "HF_HOME")


@pytest.mark.parametrize(
    ("torch", "old", "new", "expected"),
    [
        *((torch, *names, FAIL) for names in OF_TORCH.items() for torch in ("2.2.0", "2.2.2+cu121", "2.11.0")),
        *((torch, *names, PASS) for names in OF_TORCH.items() for torch in ("2.1.2", "1.13.1")),  # which read the old names only
        *((torch, *names, FAIL) for names in OF_TRANSFORMERS.items() for torch in ("1.13.1", "2.11.0")),
    ],
)
def test_names_that_were_changed(healthy: Snapshot, torch: str, old: str, new: str, expected: Verdict) -> None:
    seen = torch_of(healthy, torch)
    assert verdict(with_env(seen, {old: "1"}), "variable-renamed") is expected
    assert verdict(with_env(seen, {old: "1", new: "1"}), "variable-renamed") is PASS


NO_NAMES = (
    "TORCH_USE_CUDA_DSA",
    "CUDA_VISIBLE_DEVICE",
    "CUDA_VISIBLES_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONFIG",
    "PYTORCH_CUDA_CONF",
    "OMP_NUM_THREAD",
    "OMP_THREADS",
)


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_nothing_reads(healthy: Snapshot, name: str) -> None:
    assert lines(with_env(healthy, {name: "1"}), "variable-without-effect") == [(name, FAIL)]


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS"])
def test_names_that_something_reads(healthy: Snapshot, name: str) -> None:
    assert verdict(with_env(healthy, {name: "1"}), "variable-without-effect") is PASS


@pytest.mark.parametrize(
    ("system", "expected"),
    [(name, FAIL) for name in ("ALL", "COLL", "P2P", "CALL", "PROXY", "TUNING", "ALLOC", "PROFILE", "INIT,Coll", " p2p ")]
    + [(name, PASS) for name in ("INIT", "BOOTSTRAP", "ENV", "NET", "GRAPH", "SHM", "INIT,ENV", "")],
)
def test_what_nccl_prints_at_each_operation(healthy: Snapshot, system: str, expected: Verdict) -> None:
    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": system}
    assert verdict(with_env(healthy, env), "nccl-debug-verbose") is expected


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_variables_of_the_allocator(healthy: Snapshot, name: str) -> None:
    assert lines(with_env(healthy, {name: "max_split_size_mb=512"}), "cuda-allocator-setting-invalid") == [(name, FAIL)]


BOOLEAN = (
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
)
OF_OTHER_KINDS = {
    "max_split_size_mb": "128",
    "max_non_split_rounding_mb": "64",
    "garbage_collection_threshold": "0.8",
    "roundup_power2_divisions": "[256:1,512:2]",
    "roundup_bypass_threshold_mb": "256",
    "backend": "native",
    "pinned_num_register_threads": "8",
    "pinned_reserve_segment_size_mb": "1024",
    "pinned_max_round_threshold_mb": "128",
    "pinned_max_cached_size_mb": "128",
    "per_process_memory_fraction": "0.5",
    "large_segment_size_mb": "40",
}


@pytest.mark.parametrize("name", BOOLEAN)
def test_options_of_the_allocator_that_are_on_or_off(name: str) -> None:
    for value in ("True", "False"):
        assert (allocator_faults(f"{name}:{value}", "2.11.0"), unknown_allocator_names(f"{name}:{value}")) == ([], [])
    for value in ("true", "1", ""):
        assert len(allocator_faults(f"{name}:{value}", "2.11.0")) == 1


@pytest.mark.parametrize("name", OF_OTHER_KINDS)
def test_options_of_the_allocator_with_values_of_their_own(name: str) -> None:
    text = f"{name}:{OF_OTHER_KINDS[name]}"
    assert (allocator_faults(text, "2.11.0"), unknown_allocator_names(text)) == ([], [])


@pytest.mark.parametrize(
    ("text", "torch", "good"),
    [
        ("backend:native", "1.13.1", False),
        ("backend:native", "2.0.0", True),
        ("expandable_segments:True", "2.0.1", False),
        ("expandable_segments:True", "2.1.0", True),
        ("max_split_size_mb:128", "1.13.1", True),
    ],
)
def test_since_when_torch_takes_an_option(text: str, torch: str, good: bool) -> None:
    assert (not allocator_faults(text, torch)) is good


# --- GPUs and cards


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_a_rank_may_see_its_own_gpu_only(healthy: Snapshot, name: str) -> None:
    seen = asked(healthy, ranks=16)
    assert verdict(with_env(seen, {}), "several-ranks-on-one-gpu") is FAIL
    assert verdict(with_env(seen, {name: "0"}), "several-ranks-on-one-gpu") is NA


GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@pytest.mark.parametrize(("slow", "fast"), list(itertools.pairwise(GENERATIONS)))
def test_generations_of_pcie(healthy: Snapshot, slow: float, fast: float) -> None:
    link = LoadedLink(address="0000:1b:00.0", current_gts=slow, current_width=16, copy_gbytes_per_s=DENIED)
    assert links._slow_while_copying(fast, link) == (GENERATIONS[slow], GENERATIONS[fast])
    assert links._slow_while_copying(slow, link) is None


MOST_A_SECOND = {
    "link_downed": 0,
    "local_link_integrity_errors": 0,
    "excessive_buffer_overrun_errors": 0,
    "rnr_nak_retry_err": 0,
    "link_error_recovery": 5 / 60,
    "local_ack_timeout_err": 1,
    "symbol_error": 10,
    "port_rcv_errors": 10,
    "roce_slow_restart": 10,
    "port_xmit_discards": 100,
}


@pytest.mark.parametrize("counter", MOST_A_SECOND)
def test_errors_that_grow_faster_than_on_a_sound_link(healthy: Snapshot, counter: str) -> None:
    for seconds in (1200.0, 2400.0):
        most = round(MOST_A_SECOND[counter] * seconds)
        for gained, expected in ((most, PASS), (most + 1, FAIL)):
            growth = CounterGrowth(seconds=seconds, gained={"mlx5_0:1": {counter: gained}})
            seen = altered(asked(healthy, live=True), network__rdma_growth=growth)
            assert verdict(seen, "rdma-errors-growing") is expected


# --- places


@pytest.mark.parametrize("role", ["data", "checkpoints", "working directory", "home", "cache", "temporary files"])
def test_each_place_that_a_job_uses_has_to_answer(healthy: Snapshot, role: str) -> None:
    assert not isinstance(healthy.storage, Missing)
    assert not isinstance(healthy.storage.places, Missing)
    place = msgspec.structs.replace(healthy.storage.places[0], role=role, size_bytes=Missing(Why.TIMEOUT, "statvfs"))
    assert verdict(altered(healthy, storage__places=(place,)), "filesystem-not-answering") is FAIL


# --- sayings

SAYINGS = {
    "cudnn-shadowed-by-ld-library-path": (
        "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0) but found runtime version (8, 9, 2)",
        "version `libcudnn_ops_infer.so.8' not found, version libcudnn_cnn_infer.so.8 not defined in file libcudnn_cnn_infer.so.8",
    ),
    "cublas-shadowed-by-ld-library-path": (
        "libcublas.so.12: undefined symbol: cublasLtGetEnvironmentMode, version libcublasLt.so.12",
    ),
    "cuda-toolkit-missing": (
        "RuntimeError: nvcc was not found. Are you sure your environment has nvcc available?",
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)",
    ),
    "libcuda-not-linkable": (
        "/usr/bin/ld: cannot find -lcuda: No such file or directory",
        "/usr/bin/ld: cannot find -l:libcuda.so.1: No such file or directory",
        "AssertionError: libcuda.so cannot found!",
    ),
    "cudnn-not-on-loader-path": (
        "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
        "Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1, libcudnn_ops.so.9, libcudnn_ops.so}",
        "Could not load library libcudnn_ops_infer.so.9. Error: libcudnn_ops_infer.so.9: cannot open",
    ),
}


@pytest.mark.parametrize(("rule_id", "line"), [(rule_id, line) for rule_id, said in SAYINGS.items() for line in said])
def test_what_torch_and_loader_say_of_it(healthy: Snapshot, rule_id: str, line: str) -> None:
    assert verdict(altered(healthy, python__complaints=(line,)), rule_id) is FAIL
    assert verdict(altered(healthy, python__complaints=("Segmentation fault",)), rule_id) is not FAIL


def test_of_nccl_the_loader_has_no_saying(healthy: Snapshot) -> None:
    seen = altered(healthy, python__complaints=("undefined symbol: ncclCommSplit",))
    assert verdict(seen, "nccl-shadowed-by-system-library") is PASS


@pytest.mark.parametrize(
    ("place", "expected"),
    [("/nix/store/x/site-packages", NA), ("/gnu/store/x/site-packages", NA), ("/opt/store/x/site-packages", FAIL)],
)
def test_whose_triton_is_told_where_the_driver_is(healthy: Snapshot, place: str, expected: Verdict) -> None:
    assert not isinstance(healthy.python, Missing)
    assert not isinstance(healthy.python.distributions, Missing)
    moved = tuple(
        msgspec.structs.replace(item, location=place) if item.name == "triton" else item for item in healthy.python.distributions
    )
    seen = altered(healthy, python__distributions=moved, python__linkable=("/usr/lib/libcuda.so.0",))
    assert verdict(seen, "libcuda-not-linkable") is expected


# --- the window of the kernel's log

WINDOWS = {rule.id: param.default for rule in CATALOGUE for param in rule.params if param.name == "days"}
LOGGED = sorted(path.stem for path in Path(HOSTS).glob("*.fail*.json") if path.stem.split(".")[0] in WINDOWS)


@pytest.mark.parametrize("name", LOGGED)
def test_what_a_log_says_counts_for_a_week_or_a_day(name: str) -> None:
    """Nothing is happening, but that the time of looking moves on."""
    seen, rule_id = load(name), name.split(".")[0]
    assert not isinstance(seen.kernel, Missing)
    assert not isinstance(seen.kernel.events, Missing)
    assert WINDOWS[rule_id] in (1, 7)
    times = [event.last_s for event in seen.kernel.events if event.last_s is not None]
    if seen.kernel.source == "report" or len(times) < len(seen.kernel.events):
        pytest.skip("an extract, which somebody chose for what is in it")
    starts = ("boot", "driver-load", "server-back")
    at_once = tuple(
        event if event.kind in starts else msgspec.structs.replace(event, last_s=max(times)) for event in seen.kernel.events
    )
    seen = altered(seen, kernel__events=at_once)
    day = 86_400.0
    just = altered(seen, kernel__now_s=max(times) + (WINDOWS[rule_id] - 0.01) * day)
    assert verdict(just, rule_id) is FAIL
    gone = altered(seen, kernel__now_s=max(times) + (WINDOWS[rule_id] + 0.01) * day)
    assert verdict(gone, rule_id) is not FAIL
    assert result(gone, rule_id).evidence == () or verdict(gone, rule_id) in (PASS, UNKNOWN)
