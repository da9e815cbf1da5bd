"""Ranks that a barrier counts as absent, launches in a Slurm script that start too many or too few, and machines of one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import collected
from torchtune_sys.model.diagnosis import Confidence, Diagnosis


def of(tmp_path: Path, text: str) -> Diagnosis:
    (tmp_path / "job.log").write_text(text)
    return diagnose(collected([str(tmp_path)]))


def waiting(rank: int, count: int, key: str = "store_based_barrier_key:1") -> str:
    return (
        f"[2026-02-03 04:05:0{rank},678] torch.distributed.distributed_c10d: [INFO] Waiting in store based barrier to initialize process group "
        f"for rank: {rank}, key: {key} (world_size=4, worker_count={count}, timeout=0:30:00)\n"
    )


def test_the_absent_rank_is_named_where_all_others_say_that_they_wait(tmp_path: Path) -> None:
    found = of(tmp_path, "".join(waiting(rank, 3) for rank in (0, 1, 3)) * 2)
    assert (found.causes[0].cause, found.causes[0].ranks) == ("ranks-missing", (2,))


@pytest.mark.parametrize(("came", "first"), [(3, "node-never-came"), (1, "master-addr-wrong")])
def test_who_does_not_reach_what_others_reached_is_a_node_that_did_not_arrive(tmp_path: Path, came: int, first: str) -> None:
    (tmp_path / "gpu-1.log").write_text(
        f"torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. {came}/4 clients joined.\n"
    )
    (tmp_path / "gpu-3.log").write_text(
        "[E1127 21:42:24.144896294 socket.cpp:1028] [c10d] The client socket has timed out after 8000ms while trying to connect to (gpu-1, 29500).\n"
    )
    assert diagnose(collected([str(tmp_path)])).causes[0].cause == first


@pytest.mark.parametrize("width", [80, 100, 120])
def test_lines_that_were_broken_at_a_width_are_read_whole(tmp_path: Path, width: int) -> None:
    lines = "".join(waiting(rank, 3) for rank in (0, 1, 3)) * 2
    broken = "\n".join(line[at : at + width] for line in lines.splitlines() for at in range(0, len(line), width))
    found = of(tmp_path, broken)
    assert (found.causes[0].cause, found.causes[0].ranks) == ("ranks-missing", (2,))


def test_absent_ranks_are_counted_where_one_rank_speaks_for_those_that_came(tmp_path: Path) -> None:
    found = of(tmp_path, waiting(0, 1) + waiting(0, 2) + waiting(0, 2))
    assert (found.causes[0].cause, found.causes[0].ranks) == ("ranks-missing", ())
    assert "2 of 4 ranks did not arrive" in found.causes[0].evidence[0].text


def test_the_words_of_later_releases_are_read_too(tmp_path: Path) -> None:
    line = (
        "Waiting in store based barrier to initialize process group for 20.01 secondsrank: 1, key: store_based_barrier_key:2 "
        "(world_size=4, num_workers_joined=3, timeout=0:10:00 error=Socket Timeout)\n"
    )
    assert of(tmp_path, line * 3).causes[0].cause == "ranks-missing"


def test_the_absent_ranks_are_named_where_the_others_timed_out(tmp_path: Path) -> None:
    text = "".join(
        f"RuntimeError: Timed out initializing process group in store based barrier on rank: {rank}, for key: store_based_barrier_key:1 "
        "(world_size=4, worker_count=2, timeout=0:30:00)\n"
        for rank in (0, 3)
    )
    found = of(tmp_path, text)
    assert (found.causes[0].cause, found.causes[0].ranks) == ("ranks-missing", (1, 2))


@pytest.mark.parametrize(
    "text",
    [
        "".join(waiting(rank, 3) for rank in (0, 1, 3)),
        waiting(0, 2) * 3 + "Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.\n",
        waiting(0, 4) * 3,
    ],
    ids=["said-once", "left", "all-came"],
)
def test_a_slow_start_is_no_fault(tmp_path: Path, text: str) -> None:
    assert of(tmp_path, text).causes == ()


HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4\n"
TRAINER = "trainer = Trainer(devices=4, num_nodes=2, strategy='ddp')\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "#SBATCH --ntasks-per-node=4\nsrun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
        HEAD + "#SBATCH --ntasks=8\nsrun --export=ALL python -m torch.distributed.run --nproc-per-node=4 train.py\n",
        HEAD + "#SBATCH -n 8\nsrun python -m torch.distributed.launch --nproc_per_node 4 train.py\n",
        HEAD + "#SBATCH --ntasks-per-node=1\nsrun python3 train.py\n" + TRAINER,
        HEAD + "srun --label python -u train.py --epochs 3\n" + TRAINER,
        "#SBATCH --gpus-per-node=8\nsrun python train.py\ntrainer.world_size=1\n",
    ],
)
def test_a_script_that_starts_too_many_or_too_few_is_found(tmp_path: Path, text: str) -> None:
    found = of(tmp_path, text)
    assert [cause.cause for cause in found.causes] == ["job-launch-nested-wrongly"]
    assert found.causes[0].evidence[0].text.endswith((" ranks)", " GPUs)"))


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "#SBATCH --ntasks-per-node=1\nsrun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
        HEAD + "#SBATCH --ntasks-per-node=4\nsrun python train.py\n" + TRAINER,
        HEAD + "#SBATCH --ntasks-per-node=4\nsrun --ntasks-per-node=1 torchrun --nproc_per_node=4 train.py\n",
        HEAD + "srun python generate.py --tensor-parallel-size 4\n",
        "#SBATCH --gres=gpu:1\nsrun python train.py\n" + TRAINER,
        HEAD + "srun -n 8 python train.py\n" + TRAINER,
    ],
)
def test_a_script_that_starts_as_many_as_there_are_gpus_is_left_alone(tmp_path: Path, text: str) -> None:
    assert of(tmp_path, text).causes == ()


@pytest.mark.parametrize(
    "title",
    [
        "[LEP-12] [LEP-9] fix(nvlink): read the error counters",
        "# ABC-123: feat: report Xid 79",
        "[None][fix] fix: fall back when NCCL times out",
        "Add a health check (#958)",
        "nit(nvml): log what failed",
    ],
)
def test_a_change_whose_title_has_the_number_of_a_ticket_or_a_request_accuses_nobody(tmp_path: Path, title: str) -> None:
    found = of(tmp_path, f"{title}\n\nNVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    assert found.causes == ()
    assert found.unread


def came(*ranks: int, world: int = 4, word: str = "distributed") -> str:
    return "".join(f"Initializing {word}: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/{world}\n" for rank in ranks)


@pytest.mark.parametrize(
    "text",
    [
        came(0, 0, 1, 1, world=8),
        came(1, 0, 2, 3, 1, 0, 3, 2, world=8, word="fsdp"),
        came(0, 0, world=2).replace("Initializing distributed", "initializing ddp"),
        came(0, 1, 2, 3) + "All distributed processes registered. Starting with 4 processes\n" + came(0, 1, 1, 0),
    ],
)
def test_ranks_that_come_twice_were_launched_by_two_that_do_not_know_of_each_other(tmp_path: Path, text: str) -> None:
    found = of(tmp_path, text)
    assert [cause.cause for cause in found.causes] == ["job-launch-nested-wrongly"]
    assert "started more than once" in found.causes[0].evidence[0].text


@pytest.mark.parametrize("words", ["and then it hangs", "# Training is stuck with 2 nodes", "The job freezes here"])
def test_ranks_that_do_not_come_while_the_others_stand_are_counted(tmp_path: Path, words: str) -> None:
    found = of(tmp_path, f"{words}\n" + came(0, 1, world=4))
    assert {cause.cause for cause in found.causes} == {"job-launch-nested-wrongly", "ranks-missing", "node-never-came"}
    assert "2 of 4 ranks did not start" in found.causes[0].evidence[0].text


@pytest.mark.parametrize(
    "text",
    [
        came(0, 1, 2, 3) + "All distributed processes registered. Starting with 4 processes\n" + came(0, 1, 2, 3),
        came(0, 1, 0, 1, world=2) + "Epoch 0:  10%|#   | 3/30 [00:01<00:10, 2.61it/s]\n",
        came(0, 1, world=4),
        came(2, 3, world=4) + "it hangs\n",
        came(0, 1, 2, 3) + "it hangs\n",
    ],
    ids=["two-trainers", "went-on", "one-node's-log", "other-node's-log", "all-came"],
)
def test_a_start_that_nothing_speaks_against_is_left_alone(tmp_path: Path, text: str) -> None:
    assert of(tmp_path, text).causes == ()


def config(rank: int, master: str, machines: int = 2) -> str:
    return f"machine_rank: {rank}\nmain_process_ip: {master}\nnum_machines: {machines}\n"


_JOINED = "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.\n"


@pytest.mark.parametrize(
    "text",
    [
        _JOINED + config(0, "10.4.0.5") + config(0, "10.4.0.6"),
        "it hangs\na$ torchrun --nnodes=2 --node_rank=0 --master_addr=10.4.0.5 train.py\nb$ torchrun --nnodes=2 --node-rank 0 --master-addr 10.4.0.6 train.py\n",
    ],
)
def test_machines_that_all_have_one_place_and_wait_for_themselves_miss_the_others(tmp_path: Path, text: str) -> None:
    found = of(tmp_path, text)
    assert found.causes[0].cause == "ranks-missing"
    assert found.causes[0].confidence is Confidence.LIKELY
    assert found.causes[0].fix[0].startswith("give the machines the places 0 to 1")


@pytest.mark.parametrize(
    "text",
    [
        config(0, "10.4.0.5") + config(0, "10.4.0.6"),
        _JOINED + config(0, "10.4.0.5") + config(1, "10.4.0.5"),
        _JOINED + config(0, "10.4.0.5"),
        _JOINED + config(0, "10.4.0.5", 3) + config(0, "10.4.0.6", 3),
    ],
    ids=["no-failure", "two-places", "one-machine", "another-count"],
)
def test_machines_with_places_of_their_own_are_not_blamed(tmp_path: Path, text: str) -> None:
    assert not [
        cause for cause in of(tmp_path, text).causes if cause.cause == "ranks-missing" and cause.confidence is Confidence.LIKELY
    ]


def test_a_cause_that_one_rule_found_has_the_title_of_that_rule(tmp_path: Path) -> None:
    ibstat = "CA 'mlx5_0'\n\tCA type: MT4123\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Initializing\n\t\tPhysical state: LinkUp\n\t\tRate: 200\n\t\tBase lid: 65535\n\t\tSM lid: 0\n\t\tLink layer: InfiniBand\n"
    found = of(tmp_path, ibstat)
    assert [(cause.cause, cause.title) for cause in found.causes] == [
        ("ib-port-down", "InfiniBand ports have a link, but no subnet manager configures them")
    ]
    assert found.causes[0].confidence is Confidence.LIKELY
