"""Break things for real and keep what the programs print: ``python scripts/plant_faults.py FOLDER [NAME…]``.

Makes one ``FOLDER/NAME`` for each fault below, as ``judge_diagnoses.py`` reads them: ``input.txt`` has everything that the broken program printed,
``logs`` what it wrote into files of its ranks and hosts, ``case.json`` the cause, what cannot be told from it, and the rank or host. Needs root, gcc, nft and, in ``TORCHTUNE_SYS_TEST_TORCH``, a Python with torch for
CPUs; some need one for CUDA on a host without a GPU (``TORCHTUNE_SYS_TEST_TORCH_CUDA``), or torch 2.0 (``TORCHTUNE_SYS_TEST_TORCH_OLD``), and a package index.
Mounts and networks are made in namespaces of their own, limits and control groups for the one process: nothing of the host is changed.
``--sealed`` takes those of ``planted/faults.txt`` that were not run while messages were added: a third, by the hash of the name.

The causes were written down before the first run.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_LIMIT_S = 150

WORKER = """
import os, sys, time, signal, datetime
import torch, torch.distributed as dist
how, who = sys.argv[1], int(sys.argv[2])
rank = int(os.environ.get("RANK", 0))
me = rank == who
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, at): return torch.zeros(200_000)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
dist.barrier()
if how == "kill" and me: os.kill(os.getpid(), signal.SIGKILL)
if how == "segv" and me: os.kill(os.getpid(), signal.SIGSEGV)
if how == "disk" and me: torch.save(torch.zeros(10_000_000), "/full/rank.pt")
if how == "memory" and me:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)); torch.zeros(8 << 30)
if how == "files" and me:
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); list(torch.utils.data.DataLoader(Data(), num_workers=4, batch_size=1))
if how == "shm": list(torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=8))
if how == "hung" and me: time.sleep(12); sys.exit(0)
if how == "stop" and me: os.kill(os.getpid(), signal.SIGSTOP)
if how == "stop": dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))
if how == "hung": dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))
dist.barrier()
print("rank", rank, "done")
"""


class Fault(NamedTuple):
    name: str
    causes: str
    """The likeliest label first; the others cannot be told from it by what is printed."""
    command: str
    rank: int | None = None
    slurm: bool = False
    """Under a Slurm of this machine's own (tests/cli/slurm_here.py), of one node with 64 processors as Slurm believes."""
    host: str = ""
    """Of several, the one at fault."""


_RUN = "$PY -m torch.distributed.run --standalone --nproc-per-node"
_ALONE = "MASTER_PORT=29561 timeout 60 $PY -c 'import datetime,torch.distributed as d; d.init_process_group(\"gloo\", timeout=datetime.timedelta(seconds=4))'"
_OWN_NET = "unshare -n bash -c"
_LIBRARY = "printf '%s' 'extern void {symbol}(void); void PyInit_{name}(void){{{symbol}();}}' > {name}.c && gcc -shared -fPIC -o {name}.so {name}.c && $PY -c 'import {name}'"

FAULTS = (
    Fault("gloo-interface", "gloo-wrong-interface", f"GLOO_SOCKET_IFNAME=nope0 {_RUN} 2 worker.py none 0"),
    Fault("killed-of-3", "rank-killed host-memory-oom", f"{_RUN} 3 worker.py kill 1", 1),
    Fault("killed-of-6", "rank-killed host-memory-oom", f"{_RUN} 6 worker.py kill 4", 4),
    Fault("crashed-of-4", "rank-killed", f"{_RUN} 4 worker.py segv 2", 2),
    Fault("hung-of-3", "rank-hung", f"{_RUN} 3 worker.py hung 2", 2),
    Fault(
        "disk-of-2",
        "disk-full-or-quota",
        f"mkdir -p /full; unshare -m bash -c 'mount -t tmpfs -o size=1m x /full; {_RUN} 2 worker.py disk 1'; rmdir /full",
        1,
    ),
    Fault("memory-of-2", "host-memory-oom", f"{_RUN} 2 worker.py memory 1", 1),
    Fault("files-of-2", "nofile-limit-too-low", f"{_RUN} 2 worker.py files 1", 1),
    Fault("shm-of-2", "dev-shm-too-small", f"unshare -m bash -c 'mount -t tmpfs -o size=1m x /dev/shm; {_RUN} 2 worker.py shm 0'"),
    Fault("shm-without-room", "dev-shm-too-small", f"unshare -m bash -c 'mount -t tmpfs -o size=4k,nr_inodes=1 x /dev/shm; {_RUN} 1 worker.py shm 0'"),
    Fault(
        "port-taken",
        "master-port-in-use",
        "python3 -c 'import socket,time; s=socket.socket(); s.bind((\"\",29571)); s.listen(); time.sleep(100)' & sleep 1; "
        "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 $PY -m torch.distributed.run --nproc-per-node 1 --master-port 29571 worker.py none 0; kill $!",
    ),
    Fault("master-not-there", "port-refused master-addr-wrong node-never-came", f"RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 {_ALONE}"),
    Fault("master-without-name", "hostname-unresolvable master-addr-wrong", f"RANK=1 WORLD_SIZE=2 MASTER_ADDR=no-such-host.invalid {_ALONE}"),
    Fault("others-missing", "ranks-missing node-never-came", f"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 {_ALONE}"),
    Fault("no-launcher", "job-launch-nested-wrongly", f"env -u RANK -u WORLD_SIZE {_ALONE}"),
    Fault("loopback-down", "link-down master-addr-wrong", f"RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 {_OWN_NET} '" + _ALONE.replace("'", "'\\''") + "'"),
    Fault(
        "port-dropped",
        "port-dropped firewall-blocks-nccl master-addr-wrong",
        f"RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 {_OWN_NET} 'ip link set lo up; nft add table inet t; "
        "nft add chain inet t i \"{ type filter hook input priority 0; }\"; nft add rule inet t i tcp dport 29561 drop; " + _ALONE.replace("'", "'\\''") + "'",
    ),
    Fault("checkpoint-cut", "checkpoint-damaged", "$PY -c 'import torch; torch.save(torch.zeros(99999), \"a.pt\")'; truncate -s 200k a.pt; $PY -c 'import torch; torch.load(\"a.pt\")'"),
    Fault("checkpoint-read-only", "checkpoints-not-writable", "mkdir ro; unshare -m bash -c 'mount -t tmpfs -o ro x ro; $PY -c \"import torch; torch.save(torch.zeros(9), \\\"ro/a.pt\\\")\"'"),
    Fault("checkpoint-too-long", "file-size-limit", "ulimit -f 100; $PY -c 'import torch; torch.save(torch.zeros(999999), \"a.pt\")'"),
    Fault("no-temporary", "no-temporary-directory", "mkdir ro; unshare -m bash -c 'for d in /tmp /var/tmp; do mount -t tmpfs -o ro x $d; done; mount -t tmpfs -o ro x ro; cd ro; env -u TMPDIR /usr/bin/python3 -c \"import tempfile; tempfile.gettempdir()\"'"),
    Fault("no-memory", "host-memory-oom", "prlimit --as=8000000000 $PY -c 'import torch; torch.zeros(4 << 30)'"),
    Fault("cuda-on-cpu-build", "cpu-only-build", "$PY -c 'import torch; torch.zeros(1).cuda()'"),
    Fault("nccl-on-cpu-build", "cpu-only-build", "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29562 $PY -c 'import torch.distributed as d; d.init_process_group(\"nccl\")'"),
    Fault("other-cudart", "extension-cuda-mismatch wheel-libs-not-found", "echo 'void f(void){}' > a.c; gcc -shared -o libcudart.so.11.0 a.c -Wl,-soname,libcudart.so.11.0; echo 'void f(void); void PyInit_ext(void){f();}' > b.c; gcc -shared -fPIC -o ext.so b.c ./libcudart.so.11.0; rm libcudart.so.11.0; $PY -c 'import ext'"),
    Fault("old-libstdcxx", "libstdcxx-too-old", "echo 'GLIBCXX_3.4 { global: *; };' > v; echo 'int x;' > a.c; gcc -shared -fPIC -o libstdc++.so.6 a.c -Wl,-soname,libstdc++.so.6 -Wl,--version-script=v; LD_LIBRARY_PATH=$PWD $PY -c 'import torch'"),
    Fault("other-torch", "extension-torch-abi-mismatch", _LIBRARY.format(name="ext_ops", symbol="_ZN3c106detail14torchCheckFailEPKcS2_jS2_")),
    Fault("other-nvjitlink", "nvjitlink-shadowed-by-ld-library-path", _LIBRARY.format(name="sparse", symbol="__nvJitLinkComplete_12_4")),
    Fault("other-nccl", "mixed-nvidia-cuda-wheels nccl-shadowed-by-system-library nccl-wheel-version-overridden", _LIBRARY.format(name="coll", symbol="ncclCommRegister")),
    Fault("damaged-torch", "torch-install-damaged", "L=$($PY -c 'import importlib.util as i; print(i.find_spec(\"torch\").submodule_search_locations[0])')/lib/libc10.so; head -c 5000 $L > cut.so; unshare -m bash -c \"mount --bind cut.so $L; $PY -c 'import torch'; exit $?\""),
    Fault("torch-absent", "torch-not-installed", "/usr/bin/python3 -S -c 'import torch'"),
    Fault("python-home", "python-does-not-start", "PYTHONHOME=/nowhere /usr/bin/python3 -c 'print(1)'"),
    Fault("link-libcuda", "libcuda-not-linkable", "echo 'int main(void){return 0;}' > a.c; gcc a.c -lcuda"),
    Fault("no-python-headers", "python-headers-missing", "echo '#include <Python.h>' > a.c; gcc -c a.c"),
    Fault("no-nvcc", "cuda-toolkit-missing", "env -u CUDA_HOME $PY -c 'from torch.utils import cpp_extension as c; c._join_cuda_home(\"bin\", \"nvcc\")'"),
    Fault("no-ninja", "build-tool-missing", "PATH=/nowhere $PY -c 'from torch.utils import cpp_extension as c; c.verify_ninja_availability()'"),
    Fault("wheel-of-other-python", "no-wheel-for-python", "touch torch-2.0.0-cp38-cp38-manylinux1_x86_64.whl; $PY -m pip install --no-index --no-deps torch-2.0.0-cp38-cp38-manylinux1_x86_64.whl"),
    Fault("cpu-time", "cpu-time-limit", "bash -c 'ulimit -S -t 1; $PY -c \"while True: pass\"; exit $?'"),
    Fault("user-without-name", "container-uid-without-passwd", "env -u USER -u LOGNAME -u LNAME -u USERNAME setpriv --reuid 51234 --clear-groups /usr/bin/python3 -c 'import getpass; getpass.getuser()'"),
    Fault("threads", "nproc-limit-too-low cgroup-pids-limit", "setpriv --reuid 51235 --clear-groups prlimit --nproc=3 /usr/bin/python3 -c 'import threading,time; [threading.Thread(target=time.sleep, args=(1,)).start() for _ in range(9)]'"),
    Fault("no-gpu-for-container", "container-toolkit-missing", "podman run --rm --device nvidia.com/gpu=all --rootfs $PWD true"),
)  # fmt: skip


_RDZV = "$PY -m torch.distributed.run --nproc-per-node 1 --rdzv-backend c10d"
_WHEEL = (
    "mkdir -p w/{n}-{v}.dist-info; printf 'Metadata-Version: 2.1\nName: {n}\nVersion: {v}\n{more}' > w/{n}-{v}.dist-info/METADATA; "
    "printf 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n' > w/{n}-{v}.dist-info/WHEEL; {files} "
    "printf '' > w/{n}-{v}.dist-info/RECORD; (cd w; $PY -m zipfile -c ../{n}-{v}-py3-none-any.whl *); "
)
_SETUP = 'printf \'from setuptools import setup, Extension\nsetup(name="x", version="1", ext_modules=[Extension("x", ["x.c"])])\' > setup.py; echo \'int x;\' > x.c; '
LATER = (
    Fault("slurm-killed-of-4", "rank-killed host-memory-oom", "srun -n4 bash -c '[ $SLURM_PROCID = 2 ] && kill -9 $$; sleep 3'", 2, slurm=True),
    Fault("slurm-killed-of-64", "rank-killed host-memory-oom", "srun -n64 bash -c '[ $SLURM_PROCID = 41 ] && kill -9 $$; sleep 6'", 41, slurm=True),
    Fault("slurm-crashed-of-16", "rank-killed", "srun -n16 bash -c '[ $SLURM_PROCID = 11 ] && kill -11 $$; sleep 3'", 11, slurm=True),
    Fault("slurm-without-rank", "job-launch-nested-wrongly", "srun -l -n2 $PY -c 'import torch.distributed as d; d.init_process_group(\"gloo\")'", slurm=True),
    Fault("slurm-disk-of-4", "disk-full-or-quota", "mkdir ro; mount -t tmpfs -o size=64k x ro; srun -l -n4 bash -c 'if [ $SLURM_PROCID = 3 ]; then head -c 900000 /dev/zero > ro/ckpt.pt; else sleep 1; fi'; umount ro", 3, slurm=True),
    Fault("slurm-files-of-32", "nofile-limit-too-low", "srun -l -n32 bash -c 'if [ $SLURM_PROCID = 30 ]; then ulimit -n 20; /usr/bin/python3 -c \"[open(chr(47) + \\\"etc/passwd\\\") for _ in range(99)]; x=[open(chr(47) + \\\"etc/passwd\\\") for _ in range(99)]\"; else sleep 1; fi'", 30, slurm=True),
    Fault("slurm-too-many-tasks", "job-launch-nested-wrongly ranks-missing", "salloc -n2 srun -n99 true", slurm=True),
    Fault("slurm-master-without-name", "hostname-unresolvable master-addr-wrong", "srun -l -n2 bash -c 'ssh -o BatchMode=yes -o ConnectTimeout=5 no-such-node.invalid true'", slurm=True),
    Fault("killed-of-8", "rank-killed host-memory-oom", f"{_RUN} 8 worker.py kill 6", 6),
    Fault("stopped-of-2", "rank-hung rank-stopped", f"{_RUN} 2 worker.py stop 1", 1),
    Fault("agent-alone", "node-never-came ranks-missing", f"{_RDZV} --nnodes 2 --rdzv-endpoint localhost:29577 --rdzv-conf join_timeout=5 worker.py none 0"),
    Fault("rendezvous-refused", "port-refused master-addr-wrong node-never-came", f"{_RDZV} --nnodes 2 --rdzv-endpoint 127.0.0.1:29578 --rdzv-conf is_host=0,timeout=5,read_timeout=5 worker.py none 0"),
    Fault("rendezvous-without-name", "hostname-unresolvable master-addr-wrong", f"{_RDZV} --nnodes 2 --rdzv-endpoint no-such-host.invalid:29579 --rdzv-conf timeout=5,read_timeout=5 worker.py none 0"),
    Fault("podman-runtime", "container-toolkit-missing", "podman run --rm --runtime nvidia --rootfs $PWD true"),
    Fault("pip-build-metadata", "wrong-wheel-index no-wheel-for-python", "$PY -m pip install --no-index --find-links . 'torch==2.4.0+cu121'"),
    Fault("pip-python", "no-wheel-for-python", _WHEEL.format(n="torch", v="9.0", more="Requires-Python: >=3.99\\n", files="") + "$PY -m pip install --no-index --no-deps --target t ./torch-9.0-py3-none-any.whl"),
    Fault("pip-space", "disk-full-or-quota", _WHEEL.format(n="big", v="1.0", more="", files="head -c 4000000 /dev/urandom > w/big.bin;") + "mkdir t; unshare -m bash -c 'mount -t tmpfs -o size=1m x t; $PY -m pip install --no-index --no-deps --target t ./big-1.0-py3-none-any.whl'"),
    Fault("pip-compiler", "build-tool-missing", _SETUP + "CC=/nowhere/gcc PATH=/nowhere $PY setup.py build_ext"),
    Fault("module-called-random", "stdlib-hidden", "echo 'x = 1' > random.py; /usr/bin/python3 -c 'import sys; sys.path.insert(0, \"\"); import tempfile'"),
    Fault("folder-called-torch", "torch-shadowed", "mkdir torch; /usr/bin/python3 -c 'import sys; sys.path.insert(0, \"\"); import torch; torch.Tensor'"),
    Fault("no-libc-headers", "compiler-headers-missing", "echo '#include <stdio.h>' > a.c; gcc -nostdinc -c a.c"),
    Fault("no-such-instruction", "cpu-lacks-avx", "echo 'int main(void){__builtin_trap();}' > a.c; gcc a.c -o a; bash -c './a; exit $?'"),
    Fault("time-ahead", "clock-skew", "printf 'a: b\\n\\ttouch a\\n' > Makefile; touch -d '+2 days' b; make"),
    Fault("segment-too-large", "dev-shm-too-small", "unshare -m bash -c 'mount -t tmpfs -o size=64k x /dev/shm; $PY -c \"import torch; torch.zeros(9999999).share_memory_()\"'"),
    Fault("cublas-absent", "wheel-libs-not-found", "echo 'void f(void){}' > a.c; gcc -shared -o libcublas.so.12 a.c -Wl,-soname,libcublas.so.12; echo 'void f(void); void PyInit_ext(void){f();}' > b.c; gcc -shared -fPIC -o ext.so b.c ./libcublas.so.12; rm libcublas.so.12; $PY -c 'import ext'"),
    Fault("cache-without-exec", "compile-cache-not-executable", "mkdir c; unshare -m bash -c 'mount -t tmpfs -o noexec x c; TORCHINDUCTOR_CACHE_DIR=$PWD/c/torchinductor_x $PY -c \"import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(9))\"'"),
    Fault("cache-read-only", "compile-cache-not-writable", "mkdir c; unshare -m bash -c 'mount -t tmpfs -o ro x c; TORCHINDUCTOR_CACHE_DIR=$PWD/c/torchinductor_x $PY -c \"import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(9))\"'"),
    Fault("ssh-refused", "port-refused master-addr-wrong", "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -p 1 127.0.0.1 true"),
    Fault("checkpoint-of-pickle-cut", "checkpoint-damaged", "$PY -c 'import torch; torch.save({\"a\": torch.zeros(9)}, \"a.pt\", _use_new_zipfile_serialization=False)'; truncate -s 100 a.pt; $PY -c 'import torch; torch.load(\"a.pt\")'"),
)  # fmt: skip
"""Written down after those above were mended."""


_PLACE = Path(__file__).parent / "planted"
_SHELL = f"""
JOB={_PLACE}/job.py TRAINER={_PLACE}/trainer.py DRESSED={_PLACE}/dressed.py ME=planted-$$ ULIMITS="--ulimit nofile=1000:1000 --ulimit nproc=1000:1000"
PYCUDA=$TORCHTUNE_SYS_TEST_TORCH_CUDA PYOLD=$TORCHTUNE_SYS_TEST_TORCH_OLD
PY38=$(ls ~/.pyenv/versions/3.8*/bin/python /usr/bin/python3.8 2> /dev/null | head -1) PY313=$(ls ~/.pyenv/versions/3.13*/bin/python /usr/bin/python3.13 2> /dev/null | head -1)
MANY="timeout 145 $PY {_PLACE}/many.py" AGENT="timeout 100 $PY -m torch.distributed.run" PORT=$((20000 + RANDOM % 9000))
RUN="$PY -m torch.distributed.run --standalone --nproc-per-node" RUNCUDA="$PYCUDA -m torch.distributed.run --standalone --nproc-per-node"
TRAINERS="env SCRIPT={_PLACE}/trainer.py JOB_LIMIT=100 $MANY"
export PORT AGENT LC_ALL=C.UTF-8
lan() {{ unshare -nmu bash -c '
mount -t tmpfs x /run; ip link set lo up; ip link add br0 type bridge; ip link set br0 up; echo 127.0.0.1 localhost > hosts
for i in $(seq $0); do echo 10.77.0.$i gpu-$i >> hosts; ip netns add gpu-$i; ip link add v$i type veth peer name eth0 netns gpu-$i; ip link set v$i master br0 up
ip -n gpu-$i link set lo up; ip -n gpu-$i addr add 10.77.0.$i/24 dev eth0; ip -n gpu-$i link set eth0 up; done; mount --bind hosts /etc/hosts
at() {{ i=$1; shift; ip netns exec gpu-$i unshare -u bash -c "hostname gpu-\\$0; exec \\"\\$@\\"" $i "$@"; }}
on() {{ i=$1; at "$@" 2>&1 | sed -u "s/^/gpu-$i: /"; }}
eval "$1"; wait' "$1" "$2"; }}
export JOB TRAINER DRESSED PY PYCUDA PYOLD PATH=$PATH:/usr/sbin:/sbin PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
wheel() {{ d=$1-$2.dist-info; rm -rf w; mkdir -p w/$d
printf "Metadata-Version: 2.1\nName: $1\nVersion: $2\n$3\n" > w/$d/METADATA; printf 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n' > w/$d/WHEEL; touch w/$d/RECORD
(cd w; $PY -m zipfile -c ../$1-$2-py3-none-any.whl *); }}
dkms_nvidia() {{ mkdir -p t s/nvidia-595.1; touch s/nvidia-595.1/Makefile
printf 'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="595.1"\nBUILT_MODULE_NAME[0]="nvidia"\nDEST_MODULE_LOCATION[0]="/kernel/drivers/video"\nMAKE[0]="make -C $kernel_source_dir modules"\nAUTOINSTALL=yes\n' > s/nvidia-595.1/dkms.conf; }}
"""


def _of_scripts() -> list[Fault]:
    """Read ``planted/faults.txt``."""
    found = []
    for each in (_PLACE / "faults.txt").read_text().split("\n@@@ ")[1:]:
        head, script = each.split("\n", 1)
        name, rank, *causes = head.split()
        number, host = (int(rank), "") if rank.isdigit() else (None, rank.strip("-") and rank)
        found.append(Fault(name, " ".join(causes), _SHELL + script, number, name.startswith("slurm-"), host))
    return found


def is_sealed(name: str) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def planted(fault: Fault, folder: Path, more: Mapping[str, str]) -> None:
    place = folder / fault.name
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "worker.py").write_text(WORKER)
        logs = place.absolute() / "logs"
        logs.mkdir(exist_ok=True)
        more = {**more, "LOGS": str(logs), "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
        env = {**os.environ, "PY": os.environ["TORCHTUNE_SYS_TEST_TORCH"], **more}
        try:
            done = subprocess.run(
                ["bash", "-c", fault.command],
                cwd=scratch,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_LIMIT_S,
            )
            said = done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as late:
            said = (late.stdout or b"").decode(errors="replace")
    (place / "input.txt").write_text(said)
    if not any(logs.iterdir()):
        logs.rmdir()
    case = {
        "id": fault.name,
        "cause": fault.causes.split()[0],
        "accept": fault.causes.split(),
        "rank": fault.rank,
        "host": fault.host,
    }
    (place / "case.json").write_text(json.dumps(case) + "\n")
    print(fault.name, len(said), flush=True)


def main() -> int:
    if len(sys.argv) < 2 or any(word.startswith("-") and word != "--sealed" for word in sys.argv[1:]):
        sys.exit(__doc__)
    sealed = "--sealed" in sys.argv
    folder, *names = (word for word in sys.argv[1:] if word != "--sealed")
    scripts = [fault for fault in _of_scripts() if is_sealed(fault.name) == sealed]
    wanted = [fault for fault in (*(() if sealed else (*FAULTS, *LATER)), *scripts) if not names or fault.name in names]
    for fault in wanted:
        if not fault.slurm:
            planted(fault, Path(folder), {})
    under_slurm = [fault for fault in wanted if fault.slurm]
    if under_slurm:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests/cli"))
        import slurm_here

        with tempfile.TemporaryDirectory() as root, slurm_here.cluster(Path(root), "task/none", 64) as env:
            for fault in under_slurm:
                planted(fault, Path(folder), env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
