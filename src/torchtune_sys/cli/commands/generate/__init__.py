"""``torchtune-sys generate``: one command per piece."""

from __future__ import annotations

import click

from torchtune_sys.cli.lazy import LazyGroup

_HERE = "torchtune_sys.cli.commands.generate"
COMMANDS = {
    "script": (f"{_HERE}.script", "One bash script that makes the changes, checks them and takes them back."),
    "install": (f"{_HERE}.install", "What to install: driver, torch and the rest, as exact commands."),
    "dockerfile": (f"{_HERE}.dockerfile", "A container image for training, and how it must be started."),
    "cloud-init": (f"{_HERE}.cloud_init", "User data that takes a new machine from bare to proven."),
    "smoke": (f"{_HERE}.smoke", "The training smoke test, as one script that needs only torch."),
    "env": (f"{_HERE}.env", "The environment of a job: shell, systemd, Slurm, Docker, Kubernetes."),
    "numactl": (f"{_HERE}.numactl", "Where each local rank runs: commands, or a wrapper script."),
    "sysctl": (f"{_HERE}.files:sysctl", "The file for /etc/sysctl.d."),
    "limits": (f"{_HERE}.files:limits", "The file for /etc/security/limits.d."),
    "modprobe": (f"{_HERE}.files:modprobe", "The file for /etc/modprobe.d."),
    "tmpfiles": (f"{_HERE}.files:tmpfiles", "The file for /etc/tmpfiles.d (values below /sys)."),
    "udev": (f"{_HERE}.files:udev", "The file for /etc/udev/rules.d (values of disks)."),
    "systemd": (f"{_HERE}.systemd", "Drop-ins of systemd, and one for a service of your own."),
    "tuned": (f"{_HERE}.tuned", "A tuned profile that adds to the active one."),
    "slurm": (f"{_HERE}.slurm", "Hooks of Slurm that judge a node before a job starts there."),
    "kubernetes": (f"{_HERE}.kubernetes", "A job whose pods meet before they train, or a daemon that judges nodes."),
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
Nothing of it needs root: what is printed is for you to bring to its place,
which each command names. apply does it by itself, and undo takes it back.
""",
)
def command() -> None:
    """Print scripts and configuration files made from the plan; nothing is changed."""
