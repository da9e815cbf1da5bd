"""A trainer as people write them, and a line of Python that breaks it: ``trainer.py "WHEN: CODE" RANK``.

CODE runs on RANK alone, or on every rank if WHEN begins with ``each`` (then ``me`` says whether it is RANK): ``before`` the ranks meet, ``with`` the group there, at a ``step``,
in the ``data`` set, at the ``end``. LOOK is how it logs: plain, logging, json, megatron; WRAP what holds the model: ddp, fsdp, none.
"""

import datetime
import json
import logging
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

WHEN, _, CODE = sys.argv[1].partition(":")
WHO = int(sys.argv[2])
for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
    if name in os.environ:
        os.environ.setdefault("RANK", os.environ[name])
RANK = int(os.environ.get("RANK", "0"))
LOOK, WRAP = os.environ.get("LOOK", "plain"), os.environ.get("WRAP", "ddp")
SECONDS, STEPS = float(os.environ.get("JOB_SECONDS", "12")), int(os.environ.get("STEPS", "9"))


def happens(when, **known):
    each = WHEN.startswith("each ")
    if WHEN.rpartition(" ")[2] == when and (each or RANK == WHO):
        known |= {"me": RANK == WHO, "RANK": RANK, "os": os, "sys": sys, "time": time, "torch": torch, "dist": dist, "say": say}
        exec(compile(CODE.strip(), "/workspace/llm/train.py", "exec"), known)


class AsJson(logging.Formatter):
    def format(self, record):
        said = {
            "ts": self.formatTime(record),
            "level": record.levelname,
            "rank": RANK,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(said)


def say(words, *more):
    if LOOK == "plain":
        print(words % more, flush=True)
    elif LOOK == "megatron" and dist.get_world_size() == RANK + 1:
        print(f" [{datetime.datetime.now()}] iteration {more[0]:8d}/{STEPS:8d} | consumed samples: {more[0] * 8:12d} | elapsed time per iteration (ms): {11.7 * more[0]:.1f} | learning rate: 1.000000E-04 | global batch size: {8:5d} | lm loss: {more[1]:.6E} | loss scale: 1.0 | grad norm: 0.612 | number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)  # fmt: skip
    elif LOOK in ("logging", "json"):
        logging.getLogger("llm.train").info(words, *more)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, at):
        if at >= 40:
            happens("data", at=at)
        return torch.arange(16) % 64


def wrapped(model):
    if WRAP == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
        return model
    return torch.nn.parallel.DistributedDataParallel(model) if WRAP == "ddp" else model


@record
def main():
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s,%(levelname)s,rank {RANK},%(name)s:%(lineno)d: %(message)s")
    if LOOK == "json":
        logging.getLogger().handlers[0].setFormatter(AsJson())
    happens("before")
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=SECONDS))
    happens("with")
    model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
    happens("model", model=model)
    model = wrapped(model)
    adam = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.DataLoader(
        Tokens(),
        batch_size=8,
        num_workers=int(os.environ.get("WORKERS", "0")),
        timeout=float(os.environ.get("LOADER_SECONDS", "0")),
    )
    begun = time.monotonic()
    for step, tokens in enumerate(data):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step == 5:
            happens("step", model=model, loss=loss, adam=adam)
        happens("steps", step=step)
        if RANK == 0 or LOOK != "plain" or "TALKS" in os.environ:
            say("step %d loss %.4f time %.2f s", step, loss.item(), time.monotonic() - begun)
        begun = time.monotonic()
    happens("end", model=model)
    dist.barrier()
    say("finished after %d steps, loss %.3f", STEPS, loss.item())


if __name__ == "__main__":
    try:
        main()
    except Exception:
        if LOOK in ("plain", "megatron"):
            raise
        logging.getLogger("llm.train").exception("training failed in step")
        os._exit(1)
    os._exit(0)
