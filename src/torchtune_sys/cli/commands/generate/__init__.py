"""``torchtune-sys generate``: one command per piece."""

from __future__ import annotations

import click

from torchtune_sys.cli.lazy import LazyGroup

_HERE = "torchtune_sys.cli.commands.generate"
COMMANDS = {
    "script": (f"{_HERE}.script", "Bash script that makes, checks and undoes the changes."),
    "install": (f"{_HERE}.install", "Commands that install the driver, torch and the rest."),
    "dockerfile": (f"{_HERE}.dockerfile", "Dockerfile for training, and the flags to start it with."),
    "cloud-init": (f"{_HERE}.cloud_init", "cloud-init user data that installs, tunes and tests a new machine."),
    "smoke": (f"{_HERE}.smoke", "Smoke test as one script that needs only torch."),
    "env": (f"{_HERE}.env", "Environment variables of a job: shell, systemd, Slurm, Docker, Kubernetes."),
    "numactl": (f"{_HERE}.numactl", "CPU and memory binding of each local rank: table, commands, wrapper."),
    "sysctl": (f"{_HERE}.files:sysctl", "File for /etc/sysctl.d."),
    "limits": (f"{_HERE}.files:limits", "File for /etc/security/limits.d."),
    "modprobe": (f"{_HERE}.files:modprobe", "File for /etc/modprobe.d."),
    "tmpfiles": (f"{_HERE}.files:tmpfiles", "File for /etc/tmpfiles.d (values below /sys)."),
    "udev": (f"{_HERE}.files:udev", "File for /etc/udev/rules.d (values of disks)."),
    "systemd": (f"{_HERE}.systemd", "systemd drop-ins, including one for your own service."),
    "tuned": (f"{_HERE}.tuned", "tuned profile that extends the active one."),
    "slurm": (f"{_HERE}.slurm", "Slurm hooks that check a node before a job starts, and a batch script."),
    "kubernetes": (f"{_HERE}.kubernetes", "Job with a pre-flight init container, or a DaemonSet that checks nodes."),
    "kernel-args": (f"{_HERE}.kernel_args", "Kernel arguments: a line, a file for grub.d, or commands."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    name="generate",
    epilog="""\b
Examples:
  torchtune-sys generate script -o tune.sh && sudo bash tune.sh --dry-run
  torchtune-sys generate env --nproc-per-node 8 -o job.env && . ./job.env
  torchtune-sys generate sysctl --from host.json

\b
No root is needed: each command prints a file and names the place where you
put it. apply makes the same changes itself, and undo restores them.
""",
)
def command() -> None:
    """Print scripts and configuration files that make the changes; change nothing."""
