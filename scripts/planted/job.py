"""A job that breaks in a way of one's choice: ``job.py HOW RANK``, RANK the one that breaks (``plant_faults.py`` runs it)."""

import ctypes
import datetime
import mmap
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HOW, WHO = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ.get("RANK", "0"))


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        if at == 9 and HOW == "loader-killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if at == 9 and HOW == "loader-crashed":
            os.kill(os.getpid(), signal.SIGSEGV)
        return torch.zeros(50_000)


def loads():
    list(torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=4))


def eats():
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20) * 16))


def numpy_memory():
    import numpy

    numpy.ones((1 << 22, 1 << 22))


def saves_shards():
    from torch.distributed.checkpoint import save

    save({f"w{RANK}": torch.zeros(2_000_000 if RANK == WHO else 10)}, checkpoint_id="f/step5")


def points():
    with open("pointer.pt", "w") as file:
        file.write(
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 438\n"
        )
    torch.load("pointer.pt")


def shrinks():
    with open("data.bin", "w+b") as file:
        file.truncate(1 << 20)
        seen = mmap.mmap(file.fileno(), 1 << 20)
        file.truncate(0)
    seen[1 << 19]


def stale():
    """Open by its handle what somebody removed: what NFS answers of a file that its server no longer has."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("shard.bin", "wb"):
        pass
    handle, mount = ctypes.create_string_buffer(136), ctypes.c_int()
    ctypes.memmove(handle, (128).to_bytes(4, "little"), 4)
    libc.name_to_handle_at(-100, b"shard.bin", handle, ctypes.byref(mount), 0)
    os.unlink("shard.bin")
    folder = os.open(".", os.O_RDONLY)
    if libc.open_by_handle_at(folder, handle, os.O_RDONLY) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "/mnt/nfs/data/shard.bin")


def opens_files():
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
    list(torch.utils.data.DataLoader(Data(), num_workers=6, batch_size=1))


def differs():
    dist.all_reduce(torch.ones(3, 5) if RANK == WHO else torch.ones(40, 50))


def another_collective():
    dist.all_gather([torch.ones(4) for _ in range(dist.get_world_size())], torch.ones(4)) if RANK == WHO else dist.all_reduce(
        torch.ones(4)
    )


def broadcasts():
    dist.broadcast(torch.ones(4), 0) if RANK == WHO else dist.barrier()


def falls():
    import faulthandler

    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGSEGV)


def two_faults():
    if RANK == WHO:
        torch.save(torch.zeros(10_000_000), "f/step5.pt")
    time.sleep(3)
    if RANK == WHO + 6:
        os.kill(os.getpid(), signal.SIGKILL)


def loads_checkpoint():
    """A checkpoint of another day: the model had another layer then."""
    state = {"0.weight": torch.zeros(8, 8)} if RANK != WHO else {"0.weight": torch.zeros(8, 4), "1.bias": torch.zeros(4)}
    torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False)).load_state_dict(state)


def inodes():
    for number in range(9):
        with open(f"f/step{number}-rank{RANK}", "w") as file:
            file.write("x")


def interface():
    os.environ["GLOO_SOCKET_IFNAME"] = "ens9f9"
    dist.new_group(list(range(dist.get_world_size())))


AT_STEP = {
    "loader": loads, "loader-killed": loads, "loader-crashed": loads, "eats": eats, "numpy-memory": numpy_memory, "sharded": saves_shards,
    "pointer": points, "bus": shrinks, "inodes": inodes, "interface": interface,
    "raises": lambda: int("nan"), "shapes": lambda: torch.zeros(3, 4) @ torch.zeros(5, 6), "cuda": lambda: torch.zeros(1, device="cuda"),
    "smi": lambda: subprocess.run(["nvidia-smi", "-L"], check=True), "sleeps": lambda: time.sleep(60), "abort": os.abort,
    "illegal": lambda: os.kill(os.getpid(), signal.SIGILL), "leaves": lambda: os._exit(0), "early": lambda: sys.exit(0), "late": lambda: time.sleep(30),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP), "stale": stale, "files": opens_files, "differs": differs, "another": another_collective,
    "broadcasts": broadcasts, "falls": falls, "two": two_faults, "checkpoint": loads_checkpoint, "module": lambda: __import__("apex"),
    "disk": lambda: torch.save(torch.zeros(10_000_000), f"f/rank{RANK}.pt"), "key": lambda: {"input_ids": 1}["loss_mask"],
    "index": lambda: torch.nn.Embedding(10, 4)(torch.tensor([12])), "nan": lambda: (_ for _ in ()).throw(FloatingPointError("loss is nan at step 5")), "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}  # fmt: skip
EACH = ("sharded", "smi", "interface", "sleeps", "differs", "another", "broadcasts", "two", "checkpoint")
"""What every rank does, not only the one that breaks."""


def trains():
    if HOW == "interface-first" and RANK == WHO:
        os.environ["GLOO_SOCKET_IFNAME"] = "ib0"
    seconds = float(os.environ.get("JOB_SECONDS", "20"))
    dist.init_process_group(os.environ.get("BACKEND", "gloo"), timeout=datetime.timedelta(seconds=seconds))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    adam = torch.optim.AdamW(model.parameters())
    for step in range(12):
        adam.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        adam.step()
        if RANK == 0:
            print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
        if step == 5 and HOW in AT_STEP and (RANK == WHO or HOW in EACH):
            if HOW != "interface" or RANK == WHO:
                AT_STEP[HOW]()
            else:
                dist.new_group(list(range(dist.get_world_size())))
    print("done", RANK, flush=True)
    os._exit(0)


def spawned(rank):
    if rank == WHO and HOW == "spawn-kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == WHO:
        with open("f/out", "wb") as file:
            file.write(bytes(9_000_000))
    time.sleep(8)


def sends(queue):
    for _ in range(200):
        queue.put(torch.ones(10))
    time.sleep(5)


def queues():
    queue = mp.get_context("fork").Queue()
    mp.get_context("fork").Process(target=sends, args=(queue,), daemon=True).start()
    print(len([queue.get() for _ in range(200)]))


def dies(_):
    os.kill(os.getpid(), signal.SIGKILL)


def pool():
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(2) as workers:
        print(list(workers.map(dies, range(4))))


def prints():
    for step in range(20_000):
        print("step", step, "loss", 1 / (step + 1))


def adds():
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, n: tl.constexpr):
        tl.store(x + tl.arange(0, n), 1)

    add[(1,)](torch.zeros(16), 16)


def asks_nccl():
    import glob

    import nvidia.nccl

    library = ctypes.CDLL(glob.glob(os.path.join(next(iter(nvidia.nccl.__path__)), "lib", "libnccl.so.*"))[0])
    print("ncclGetUniqueId:", library.ncclGetUniqueId(ctypes.create_string_buffer(128)))


ALONE = {
    "loader-alone": loads, "queue": queues, "pool": pool, "prints": prints, "triton": adds, "nccl-id": asks_nccl,
    "spawn-kill": lambda: mp.spawn(spawned, nprocs=4), "spawn-disk": lambda: mp.spawn(spawned, nprocs=2),
}  # fmt: skip

if __name__ == "__main__":
    ALONE.get(HOW, trains)()
