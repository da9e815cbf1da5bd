"""Make the files that test_compat.py judges, with another checkout: what that commit leaves on a host.

    python tests/compat/make.py CHECKOUT FOLDER [PYTHON-WITH-TORCH]
    python tests/compat/make.py CHECKOUT FOLDER documents       what compare reads, of the recorded host of 8 GPUs; needs no root

As root, in mount namespaces of its own: two runs of apply (one of them killed half way), a run of every kind of step, a recording with
its verdicts, a configuration file, and, with a Python that has torch, a proof. FOLDER is named for the commit.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path += [str(TESTS), str(TESTS / "apply")]

LAID = """
set -eu
mount -t tmpfs none "$STAGE"
mkdir "$STAGE"/{upper,work,state,opt}
mkdir -p /var/lib/torchtune-sys
mount -t overlay o -o "lowerdir=/etc,upperdir=$STAGE/upper,workdir=$STAGE/work" /etc
mount --bind "$STAGE/state" /var/lib/torchtune-sys
echo 3000 > "$STAGE/maps"; mount --bind "$STAGE/maps" /proc/sys/vm/max_map_count
echo 2000 > "$STAGE/pids"; mount --bind "$STAGE/pids" /proc/sys/kernel/pid_max
echo 6d1a1f0e-0000-4000-8000-000000000001 > "$STAGE/boot"; mount --bind "$STAGE/boot" /proc/sys/kernel/random/boot_id
ip link set lo up
mkdir -p /etc/sysctl.d; rm -f /etc/sysctl.d/*torchtune*
printf '# by hand, no newline at the end\\nvm.max_map_count = 4000' > /etc/sysctl.d/99-torchtune-sys.conf
chmod 640 /etc/sysctl.d/99-torchtune-sys.conf
tt() { "$PYTHON" -m torchtune_sys "$@"; }
APPLY="apply --yes --select max-map-count-low,task-table-small"
"""
APPLIED = LAID + 'tt $APPLY; cp /var/lib/torchtune-sys/0001.journal /etc/sysctl.d/99-torchtune-sys.conf "$TO"'
KILLED = LAID + (
    "strace -f -qq -o /dev/null -e trace=rename,renameat,renameat2 -e inject=rename,renameat,renameat2:signal=KILL:when=2 "
    '"$PYTHON" -m torchtune_sys $APPLY || true\n'
    'cp /var/lib/torchtune-sys/0001.journal "$TO/killed.journal"; cat /proc/sys/vm/max_map_count /proc/sys/kernel/pid_max\n'
    "cat /etc/sysctl.d/99-torchtune-sys.conf"
)
PROVEN = LAID + (
    'mount -t tmpfs none /opt; mkdir /opt/torch; mount --bind "$TORCH" /opt/torch\n'
    "for run in 1 2; do tt smoke --quick --nproc-per-node 1 --python /opt/torch/bin/python; done\n"
    'cp /var/lib/torchtune-sys/proof.json "$TO"'
)
EVERY_STEP = """
import sys
from pathlib import Path
import crash_machine, crash_run
stage, to = Path(sys.argv[1]), Path(sys.argv[2])
crash_machine.lay(stage)
crash_machine.set_up()
assert crash_run.main("apply") == 0
(to / "every-step.journal").write_bytes(Path("/var/lib/torchtune-sys/0001.journal").read_bytes())
"""
CONFIG = """\
profile = "cluster"
ignore = ["kernel-old", "thp-*"]
fail-on = "warning"

[rules.swappiness-high]
max = 60

[rules.memory-available-low]
min_share = 0.9
enough_gib = 64

[rules.disk-space-low]
minimum_gib = 2000

[rules.max-map-count-low]
enabled = false
"""


def main() -> None:
    checkout, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join(str(place) for place in (checkout / "src", checkout / "tests", checkout / "tests/apply"))
    env = {"PATH": os.environ["PATH"], "HOME": "/root", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    if sys.argv[3:] == ["documents"]:
        documents(folder, env, checkout / "tests/hosts/healthy.json")
        return
    env |= {"STAGE": str(folder / "stage"), "TO": str(folder), "PYTHON": sys.executable}
    applied(folder, env, sys.argv[3] if len(sys.argv) > 3 else "")
    (folder / "config.toml").write_text(CONFIG)
    judged(folder, env, checkout / "tests/hosts/typical/laptop-cpu.json")


def applied(folder: Path, env: dict[str, str], torch: str) -> None:
    stage = folder / "stage"
    stage.mkdir()
    alone = ("unshare", "--mount", "--net", "--propagation", "private")
    try:
        for script in (APPLIED, KILLED):
            subprocess.run((*alone, "bash", "-c", script), env=env, check=True)
        subprocess.run((*alone, sys.executable, "-c", EVERY_STEP, str(stage), str(folder)), env=env, check=True)
        if torch:
            subprocess.run((*alone, "bash", "-c", PROVEN), env={**env, "TORCH": str(Path(torch).parent.parent)}, check=True)
    finally:
        stage.rmdir()


def judged(folder: Path, env: dict[str, str], host: Path) -> None:
    """The recording that the checkout makes of a host, and its verdicts, with and without the configuration."""
    tool = (sys.executable, "-m", "torchtune_sys")
    recording, config = folder / "recording.json", folder / "config.toml"
    subprocess.run((*tool, "record", "--from", host, "--salt", "kept", "-o", recording), env=env, check=True)
    verdicts = {}
    for name, options in (("plain", ()), ("configured", ("--config", config))):
        argv = (*tool, "check", "--from", recording, "--format", "json", *options)
        done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=False)
        results = json.loads(done.stdout)["results"]
        verdicts[name] = {"status": done.returncode, "rules": {result["rule"]: result["verdict"] for result in results}}
    (folder / "verdicts.json").write_text(json.dumps(verdicts, indent=1) + "\n")


FORMS = {
    "recording": ("record", "--salt", "kept"),
    "snapshot": ("snapshot", "--format", "json"),
    "report": ("check", "--format", "json"),
    "facts": ("snapshot", "--compact"),
    "preflight": ("preflight", "--format", "json"),
}


def documents(folder: Path, env: dict[str, str], host: Path) -> None:
    """Each form in which the checkout tells of a host, as far as it has it; compressed."""
    for name, words in FORMS.items():
        argv = (sys.executable, "-m", "torchtune_sys", *words, "--from", host)
        said = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
        if said:
            (folder / f"{name}.json.gz").write_bytes(gzip.compress(said, mtime=0))


if __name__ == "__main__":
    main()
