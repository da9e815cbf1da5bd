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


class Blocked(Data):
    """A file system that does not answer: nobody writes into the pipe."""

    def __getitem__(self, at):
        if not os.path.exists("shard-00017.tar"):
            os.mkfifo("shard-00017.tar")
        with open("shard-00017.tar", "rb") as file:
            return torch.tensor(len(file.read()))


def skips():
    if RANK != WHO:
        dist.all_reduce(torch.ones(4))


def other_type():
    dist.all_reduce(torch.ones(64, dtype=torch.float64 if RANK == WHO else torch.float32))


def other_order():
    sizes = (4096, 16) if RANK == WHO else (16, 4096)
    for size in sizes:
        dist.all_reduce(torch.ones(size))


def fills_shm():
    """A segment of /dev/shm that is longer than the room there: the kernel says so only when it is written."""
    with open(f"/dev/shm/segment-{RANK}", "w+b") as file:
        file.truncate(64 << 20)
        seen = mmap.mmap(file.fileno(), 64 << 20)
        for at in range(0, 64 << 20, 4096):
            seen[at] = 1


def starts_threads():
    import resource
    import threading

    os.setuid(51237)
    resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))
    for _ in range(9):
        threading.Thread(target=time.sleep, args=(5,)).start()


def asserts():
    batch = torch.zeros(3, 4)
    assert batch.shape[0] == 4, f"batch of {batch.shape[0]} samples, 4 expected"


def downloads():
    import urllib.request

    urllib.request.urlopen(os.environ["URL"], timeout=20).read()


def uneven():
    """More batches on one rank than on the others: it waits for them when they have ended."""
    if RANK != WHO:
        dist.destroy_process_group()
        os._exit(0)


def stacks():
    """Where each rank is, said shortly before the others give up."""
    import faulthandler

    faulthandler.dump_traceback_later(float(os.environ.get("JOB_SECONDS", "20")) - 2)
    if RANK == WHO:
        blocks()


def recorded():
    """The collectives of each rank, as gloo's flight recorder has them, after one rank left one out."""
    try:
        if RANK != WHO:
            dist.all_reduce(torch.ones(4))
        dist.barrier()
    finally:
        with open(os.path.join(os.environ["LOGS"], f"fr_trace_rank_{RANK}"), "wb") as file:
            file.write(torch._C._distributed_c10d._dump_fr_trace())


def blocks():
    list(torch.utils.data.DataLoader(Blocked(), batch_size=4))


def logs_with():
    """What people log with: an error of one rank, in the clothes of loguru or rich."""
    if HOW == "loguru":
        from loguru import logger

        try:
            torch.save(torch.zeros(10_000_000), f"f/rank{RANK}.pt")
        except Exception:
            logger.exception("could not write the checkpoint of step 5")
            os._exit(1)
    from rich.traceback import install

    install(width=100, show_locals=False)
    list(torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=8))


AT_STEP = {
    "blocks": blocks, "skips": skips, "type": other_type, "order": other_order, "segment": fills_shm, "threads": starts_threads, "asserts": asserts,
    "downloads": downloads, "uneven": uneven, "stacks": stacks, "recorded": recorded, "loguru": logs_with, "rich": logs_with, "null": lambda: ctypes.string_at(0),
    "exits": lambda: os._exit(3), "big": lambda: dist.all_reduce(torch.ones(1 << 20)), "oserror": lambda: os.open("/mnt/nfs/ckpt/optim.pt", os.O_WRONLY | os.O_CREAT), "unknown": lambda: __import__("socket").getaddrinfo("storage.cluster.invalid", 443),
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
EACH = (
    "skips",
    "type",
    "order",
    "uneven",
    "stacks",
    "recorded",
    "big",
    "sharded",
    "smi",
    "interface",
    "sleeps",
    "differs",
    "another",
    "broadcasts",
    "two",
    "checkpoint",
)
"""What every rank does, not only the one that breaks."""


def trains():
    if HOW == "interface-first" and RANK == WHO:
        os.environ["GLOO_SOCKET_IFNAME"] = "ib0"
    seconds = float(os.environ.get("JOB_SECONDS", "20"))
    if HOW == "before" and RANK == WHO:
        time.sleep(100)
    if HOW == "absent-key" and RANK == WHO:
        print("loading the tokenizer", {}["vocab_file"])
    dist.init_process_group(os.environ.get("BACKEND", "gloo"), timeout=datetime.timedelta(seconds=seconds))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    adam = torch.optim.AdamW(model.parameters())
    for step in range(12):
        begun = time.monotonic()
        if HOW == "slow":
            time.sleep(1.4 if RANK == WHO else 0.1)
            print(f"[rank{RANK}] step {step} data {time.monotonic() - begun:.2f} s", flush=True)
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


def leaves(rank):
    time.sleep(2)
    if rank == WHO:
        sys.exit(3)
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
    "spawn-kill": lambda: mp.spawn(spawned, nprocs=4), "spawn-exit": lambda: mp.spawn(leaves, nprocs=6), "spawn-disk": lambda: mp.spawn(spawned, nprocs=2),
}  # fmt: skip

if __name__ == "__main__":
    ALONE.get(HOW, trains)()
