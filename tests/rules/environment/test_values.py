"""Values of single variables: each fault that the allocator's options and a list of devices can have, in words."""

from __future__ import annotations

import pytest

from torchtune_sys.rules.environment.values import allocator_faults, unknown_allocator_names


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ("expandable_segments:False", 0),
        ("backend:native", 0),
        ("backend:hipMallocAsync", 0),
        ("per_process_memory_fraction:1.0", 0),
        ("per_process_memory_fraction:0", 0),
        ("per_process_memory_fraction:0.5", 0),
        ("per_process_memory_fraction:1.1", 1),
        ("per_process_memory_fraction:half", 1),
        ("garbage_collection_threshold:0.5", 0),
        ("garbage_collection_threshold:half", 1),
        ("roundup_power2_divisions:[256:1,512:2],backend:async", 1),
        ("backend:async,expandable_segments:1", 2),
        ("backend:native,,expandable_segments:True", 0),
        ("backend:native,", 0),
        ("backend:async,max_split_size:512,backend", 3),
        ("some_new_option:1", 0),
        ("   ", 0),
    ],
)
def test_each_fault_of_the_allocator_is_told(value: str, faults: int) -> None:
    found = allocator_faults(value, "2.11.0")
    assert len(found) == faults and all(found)


def test_faults_say_where_and_why() -> None:
    assert allocator_faults(",backend:native", "2.4.1") == ["an empty entry"]
    assert allocator_faults("backend:native,", "2.4.1") == []
    assert allocator_faults("backend", None) == ["'backend' is no name:value"]
    assert allocator_faults("expandable_segments:True", "2.0.1") == ["expandable_segments came with torch 2.1; this is 2.0.1"]
    assert allocator_faults("backend:native", "2.0.0") == []
    assert unknown_allocator_names("max_split_size:1,backend,new_thing:2") == ["new_thing"]
    assert unknown_allocator_names("backing:1") == ["backing"]  # too far from backend to be a slip
    assert unknown_allocator_names("rounds:[1:2,3:4],new_thing:2") == ["rounds", "new_thing"]
