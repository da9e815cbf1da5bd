"""Where the rules of the environment begin and end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from conftest import judge, load
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import need
from torchtune_sys.rules.environment.values import allocator_faults, unknown_allocator_names

SITE = "/data/train/.venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:20",  # these as torch 2.13 took them (torch._C._accelerator_setAllocatorSettings)
        "max_split_size_mb:64MB",
        "max_split_size_mb:-1",
        "max_non_split_rounding_mb:20",
        "large_segment_size_mb:11",
        "roundup_power2_divisions:8",
        "roundup_power2_divisions:[>:0]",
        "expandable_segments:True,",
        ",expandable_segments:True",
        "expandable_segments:True,,max_split_size_mb:64",
        "garbage_collection_threshold:0.8,max_split_size_mb:512",
        "backend:cudaMallocAsync",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "expandable_segments: True , backend:native",
        "some_new_option:1",
    ],
)
def test_allocator_settings_that_are_good(value: str) -> None:
    assert allocator_faults(value, "2.11.0") == []


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments=True",
        "expandable_segments:true",
        "expandable_segments:1",
        "max_split_size_mb:19",  # and refused them
        "max_split_size_mb:lots",
        "max_non_split_rounding_mb:19",
        "large_segment_size_mb:10",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:[256:3]",
        "garbage_collection_threshold:80%",
        ",",
        "max_split_size:512",
        "garbage_collection_threshold:1.0",
        "garbage_collection_threshold:0",
        "backend:async",
        "expandable_segments",
    ],
)
def test_allocator_settings_that_are_not(value: str) -> None:
    assert allocator_faults(value, "2.11.0")


@pytest.mark.parametrize(
    ("release", "more", "renamed", "without_effect"),
    [
        ("4.57.1", {}, "fail", "pass"),
        ("5.24.0", {}, "pass", "fail"),  # no word of the old names in its files
        ("5.24.0", {"HF_HOME": "/data/hf"}, "pass", "pass"),
        ("5.24.0", {"HF_HUB_CACHE": "/data/hf/hub"}, "pass", "pass"),
        ("", {}, "fail", "pass"),
    ],
)
def test_names_that_transformers_no_longer_reads(release: str, more: dict[str, str], renamed: str, without_effect: str) -> None:
    packages = (
        {f"{SITE}/transformers-{release}.dist-info/METADATA": f"Name: transformers\nVersion: {release}\n"} if release else {}
    )
    seen = judge(load("healthy", files=packages, env={"TRANSFORMERS_CACHE": "/data/models", **more}))
    assert seen["variable-renamed"].verdict.value == renamed
    assert seen["variable-without-effect"].verdict.value == without_effect


def test_allocator_settings_by_release() -> None:
    assert [bool(allocator_faults("max_split_size_mb:20", release)) for release in ("2.8.0", "2.9.0", None)] == [
        True,
        False,
        False,
    ]
    assert [bool(allocator_faults(",backend:native", release)) for release in ("2.8.0", "2.9.0", None)] == [True, False, False]
    assert allocator_faults("expandable_segments:True", "2.0.1") and not allocator_faults("expandable_segments:True", "2.1.0")
    assert unknown_allocator_names("some_new_option:1,backend:native") == ["some_new_option"]


@given(st.text())
def test_any_value_is_judged(value: str) -> None:
    allocator_faults(value, "2.11.0")
    unknown_allocator_names(value)


def verdict(rule_id: str, **overlay: Any) -> Verdict:
    return judge(load("healthy", **overlay))[rule_id].verdict


@pytest.mark.parametrize(
    ("rule_id", "env", "wanted"),
    [
        ("cuda-launch-blocking", {"CUDA_LAUNCH_BLOCKING": ""}, Verdict.PASS),
        ("distributed-debug-detail", {"TORCH_DISTRIBUTED_DEBUG": "INFO"}, Verdict.PASS),
        ("cuda-caching-allocator-disabled", {"PYTORCH_NO_CUDA_MEMORY_CACHING": ""}, Verdict.FAIL),
        ("memory-debugging-on", {"PYTHONMALLOC": "pymalloc"}, Verdict.PASS),
        ("memory-debugging-on", {"PYTHONDEVMODE": "1"}, Verdict.FAIL),
        ("memory-debugging-on", {"PYTHONTRACEMALLOC": "0"}, Verdict.PASS),
        ("memory-debugging-on", {"MALLOC_CHECK_": "3", "LD_PRELOAD": "libc_malloc_debug.so.0"}, Verdict.FAIL),
        ("tool-injection-left", {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libasan.so.8"}, Verdict.FAIL),
        ("tool-injection-left", {"LD_PRELOAD": "libjemalloc.so.2"}, Verdict.PASS),
        ("tf32-override-off", {"NVIDIA_TF32_OVERRIDE": "1"}, Verdict.PASS),
        ("nccl-debug-verbose", {"NCCL_DEBUG": "TRACE"}, Verdict.FAIL),
        ("nccl-debug-verbose", {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}, Verdict.PASS),
        ("nccl-p2p-disabled", {"NCCL_P2P_DISABLE": "0"}, Verdict.PASS),
        ("nccl-p2p-disabled", {"NCCL_P2P_DISABLE": "true"}, Verdict.PASS),
        ("nccl-ib-disabled", {"NCCL_IB_DISABLE": "1"}, Verdict.NA),
        ("variable-renamed", {"NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_BLOCKING_WAIT": "1"}, Verdict.PASS),
        ("session-under-sudo", {"SUDO_USER": "alice"}, Verdict.PASS),
    ],
)
def test_boundaries(rule_id: str, env: dict[str, str], wanted: Verdict) -> None:
    assert verdict(rule_id, env=env) is wanted


def test_no_gpu_findings_without_an_nvidia_gpu() -> None:
    env = {
        "CUDA_LAUNCH_BLOCKING": "1",
        "NCCL_P2P_DISABLE": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_MODULE_LOADING": "EAGER",
    }
    seen = judge(load("typical/laptop-cpu", env=env))
    found = {
        rule_id: seen[rule_id].verdict.value
        for rule_id in ("cuda-launch-blocking", "nccl-p2p-disabled", "cuda-visible-devices-wrong", "tf32-override-off")
    }
    assert set(found.values()) == {"na"}, found


@pytest.mark.parametrize(
    ("path", "node", "writable", "seen"),
    [
        ("/dev/null", None, True, "missing"),
        ("/dev/null", {"mode": 0o100666, "size": 12}, True, "ordinary file"),
        ("/dev/null", {"mode": 0o20600, "size": 0, "special": "1:3"}, False, "1:3 closed"),
        ("/dev/null", {"mode": 0o20600, "size": 0, "special": "1:3"}, True, ""),
        ("/dev/null", {"mode": 0o20666, "size": 0, "special": "1:5"}, True, "1:5"),
        ("/dev/random", {"mode": 0o20444, "size": 0, "special": "1:9"}, False, ""),  # a sandbox gives urandom for it
        ("/dev/random", None, True, "missing"),
        ("/dev/zero", {"mode": 0o20644, "size": 0, "special": "1:5"}, False, ""),
    ],
)
def test_devices_that_programs_rely_on(path: str, node: dict[str, Any] | None, writable: bool, seen: str) -> None:
    node = None if node is None else {"uid": 0, "gid": 0, **node}
    answers = {f"access:{path}": {"read": writable, "write": writable}}
    found = judge(load("healthy", stats={path: node}, answers=answers))["device-file-broken"]
    assert [item.seen for item in found.evidence if item.verdict is Verdict.FAIL] == ([seen] if seen else [])


def test_a_temporary_directory_that_is_not_there() -> None:
    found = judge(load("healthy", env={"TMPDIR": "/scratch/local/job.184467"}))["variable-names-missing-file"]
    assert found.verdict is Verdict.FAIL and found.evidence[0].subject == "TMPDIR"


@pytest.mark.parametrize(
    ("env", "triton", "words"),
    [
        ({"CC": "ccache gcc"}, "3.6.0", "Triton looks for a program of this whole name"),
        ({"CXX": "ccache g++ -O2"}, "3.6.0", "torch.compile looks for a program of this whole name"),
        ({"CC": "gcc"}, "3.6.0", ""),
        ({"CC": "/opt/my tools/bin/gcc"}, "3.6.0", "no such file"),  # judged as a path, by its first word
        ({"TRITON_DEFAULT_BACKEND": "amd"}, "3.7.1", "with this torch Triton's backend is nvidia"),
        ({"TRITON_DEFAULT_BACKEND": "cuda"}, "3.7.1", "Triton has no backend of this name"),
        ({"TRITON_DEFAULT_BACKEND": "nvidia"}, "3.7.1", ""),
        ({"TRITON_DEFAULT_BACKEND": "intel"}, "3.7.1", ""),  # another package may bring it
        ({"TRITON_DEFAULT_BACKEND": "amd"}, "3.6.0", ""),  # the healthy host's release does not read it
        ({"TORCH_FR_DUMP_TEMP_FILE": "/scratch/job/trace_"}, "3.6.0", "flight recorder"),
    ],
)
def test_compilers_of_several_words_and_backends(env: dict[str, str], triton: str, words: str) -> None:
    seen = load("healthy", env=env)
    held = [replace(item, version=triton) if item.name == "triton" else item for item in need(need(seen.python).distributions)]
    seen = replace(seen, python=replace(need(seen.python), distributions=tuple(held)))
    found = judge(seen)["variable-names-missing-file"]
    shown = [item.seen for item in found.evidence if item.verdict is Verdict.FAIL]
    assert (words in shown[0] and len(shown) == 1) if words else shown == []


@pytest.mark.parametrize(
    ("env", "there", "told"),
    [
        ({}, {"huggingface-hub": "0.34.4"}, True),
        ({}, {"huggingface-hub": "0.34.4", "hf-transfer": "0.1.9"}, False),
        ({}, {"huggingface-hub": "0.34.4", "hf-xet": "1.1.7"}, False),
        ({"HF_HUB_DISABLE_XET": "1"}, {"huggingface-hub": "0.34.4", "hf-xet": "1.1.7"}, True),
        ({}, {"huggingface-hub": "1.2.0"}, False),  # no longer reads it
        ({"HF_HUB_ENABLE_HF_TRANSFER": "0"}, {"huggingface-hub": "0.34.4"}, False),
        ({}, {}, False),
    ],
)
def test_downloads_that_are_to_go_by_a_package_that_is_not_there(env: dict[str, str], there: dict[str, str], told: bool) -> None:
    seen = load("healthy", env={"HF_HUB_ENABLE_HF_TRANSFER": "1", **env})
    others = need(need(seen.python).distributions)
    held = tuple(replace(others[0], name=name, version=version) for name, version in there.items())
    seen = replace(seen, python=replace(need(seen.python), others=held))
    shown = [item.subject for item in judge(seen)["variable-names-missing-file"].evidence if item.verdict is Verdict.FAIL]
    assert shown == ["HF_HUB_ENABLE_HF_TRANSFER"] * told


@pytest.mark.parametrize(("readable", "writable", "told"), [(False, False, True), (True, False, False), (True, True, False)])
def test_a_cache_is_of_no_use_if_it_may_not_even_be_read(readable: bool, writable: bool, told: bool) -> None:
    seen = load("healthy", env={"TORCH_HOME": "/shared/hub"})
    held = need(seen.storage)
    cache = replace(held.places[0], path="/shared/hub", role="cache", readable=readable, writable=writable)
    seen = replace(seen, storage=replace(held, places=(*held.places, cache)))
    shown = [item.subject for item in judge(seen)["variable-names-missing-file"].evidence if item.verdict is Verdict.FAIL]
    assert shown == ["TORCH_HOME"] * told


@pytest.mark.parametrize(
    ("value", "told"), [(":4096:8", False), (":16:8", False), (":4096:2:16:8", False), ("", False), ("4096:8", True), ("1", True)]
)
def test_a_workspace_in_which_torch_finds_no_size(value: str, told: bool) -> None:
    found = judge(load("healthy", env={"CUBLAS_WORKSPACE_CONFIG": value}))["variable-without-effect"]
    assert [item.subject for item in found.evidence if item.verdict is Verdict.FAIL] == ["CUBLAS_WORKSPACE_CONFIG"] * told


@pytest.mark.parametrize(
    ("env", "nodes", "subjects"),
    [
        ({"PET_NNODES": "4", "PET_NODE_RANK": "2"}, None, ["PET_NNODES"]),
        ({"PET_NNODES": "2:4"}, None, ["PET_NNODES"]),
        ({"PET_NNODES": "1"}, None, []),
        ({"PET_NNODES": "4"}, 4, []),  # who asks about four hosts means them
        ({"PET_NNODES": "4", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, None, []),
        ({"NCCL_COMM_ID": "10.0.0.5:23456"}, None, ["NCCL_COMM_ID"]),
        ({"NCCL_HOSTID": "builder"}, 2, ["NCCL_HOSTID"]),
        ({"NCCL_HOSTID": "builder"}, None, []),
        ({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "4096", "SLURM_MEM_PER_NODE": "65536"}, None, ["SLURM_MEM_PER_CPU"]),
        ({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "65536"}, None, []),
        ({"SLURM_STEP_ID": "0", "SLURM_MEM_PER_CPU": "4096", "SLURM_MEM_PER_NODE": "65536"}, None, []),  # srun did start it
        ({"SLURM_STEP_ID": "4294967290", "SLURM_MEM_PER_CPU": "4096", "SLURM_MEM_PER_NODE": "0"}, None, ["SLURM_MEM_PER_CPU"]),
    ],
)
def test_variables_of_one_rank_one_host_or_another_job(env: dict[str, str], nodes: int | None, subjects: list[str]) -> None:
    found = judge(load("healthy", env=env, intent={"nodes": nodes}))["rank-variables-left"]
    assert [item.subject for item in found.evidence if item.verdict is Verdict.FAIL] == subjects


@pytest.mark.parametrize(
    ("name", "ranks", "told"),
    [
        ("/tmp/nccl.log", 2, True),
        ("/tmp/nccl.%h", 2, True),
        ("/tmp/nccl.%p", 2, False),
        ("/tmp/nccl.log", 1, False),
        ("/dev/stderr", 2, False),
    ],
)
def test_a_log_of_nccl_that_all_ranks_write(name: str, ranks: int, told: bool) -> None:
    seen = load("healthy", env={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": name}, intent={"ranks": ranks})
    shown = [item.subject for item in judge(seen)["variable-without-effect"].evidence if item.verdict is Verdict.FAIL]
    assert shown == ["NCCL_DEBUG_FILE"] * told
