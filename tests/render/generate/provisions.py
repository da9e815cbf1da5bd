"""Provisions to render, and a root directory for the script of the stages, with package managers and a Python that write down their calls."""

from __future__ import annotations

from pathlib import Path

import msgspec
from script_plans import change, plan
from script_root import Root

from torchtune_sys import engine
from torchtune_sys.host.described import Description, described
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.install import InstallCommand, InstallFile, InstallOptions, InstallStep, Packages, PythonEnvironment
from torchtune_sys.model.plan import FileLine
from torchtune_sys.model.provision import STAGES, Provision
from torchtune_sys.remediation.install import plan as install
from torchtune_sys.remediation.plan.provision import provision
from torchtune_sys.render.generate.script import MadeFor

SMOKE = "print('smoke test: pass')\n"
SYSTEMS = [("debian", "12"), ("ubuntu", "24.04"), ("rocky", "9.4"), ("sles", "15.7"), ("arch", ""), ("fedora", "44")]
TUNE = plan(change("x", FileLine(path="/etc/sysctl.d/99-torchtune-sys.conf", key="x", text="vm.swappiness = 10")))

MADE_FOR = MadeFor(system="rocky 9", cpus=2, memory_mib=1024, nvidia_gpus=1)
"""Of a release that is named by its first number."""
TORCH = PythonEnvironment(venv="/opt/torch", program="/bin/python", tool="pip", specifiers=("torch==2.13.0",), local="2.13.0")


def of_host(os_id: str, version: str, *gpus: str, wishes: InstallOptions | None = None) -> Provision:
    host = described(
        Description(
            os_id=os_id,
            os_version=version,
            os_name=f"{os_id} {version}",
            codename="",
            machine="x86_64",
            devices=gpus,
            devices_name="a GPU" if gpus else "",
            driver="",
            kernel="6.8.0-45-generic",
        )
    )
    seen = engine.snapshot(host, Workload(), timeout_s=20)
    wishes = wishes or InstallOptions(venv="/opt/torch", cpu=not gpus, extras=("rdma", "container-toolkit"))
    return provision(seen, install.plan(seen, wishes), TUNE, wishes, STAGES, "")


def step(key: str, *actions: object, reboot: bool = False, by_hand: str = "") -> InstallStep:
    return InstallStep(key=key, title=f"the step {key}", actions=actions, why="w", source="s", reboot=reboot, by_hand=by_hand)  # type: ignore[arg-type]


def of_steps(*steps: InstallStep, stages: tuple[str, ...] = ("install", "smoke"), **more: object) -> Provision:
    made = Provision(
        host="h",
        origin="o",
        system="s",
        stages=stages,
        steps=steps,
        python="/bin/python",
        device="cpu",
        tune=TUNE if "tune" in stages else None,
    )
    return msgspec.structs.replace(made, **more)


TOOLS = ("sleep", "tail", "stat", "mktemp", "ls", "env", "date", "sort", "timeout", "true", "tr")
TALK = '#!/bin/bash\nprintf "%s " "${0##*/}" "$@" >>/tmp/calls\necho >>/tmp/calls\n'
DPKG_QUERY = """#!/bin/bash
name=${!#}
if [[ -e /tmp/have/${name} ]]; then echo "installed 1.0"; fi
"""
APT = (
    TALK
    + """
for word in "$@"; do :; done
after=0 names=()
for word in "$@"; do
    if [[ ${word} == -- ]]; then after=1; elif ((after)); then names+=("${word}"); fi
done
if [[ " $* " == *" --simulate "* ]]; then
    for name in "${names[@]}"; do echo "Inst ${name} (1.0)"; done
    if [[ -e /tmp/removes ]]; then echo "Remv keepme [1.0]"; fi
    exit 0
fi
if [[ " $* " == *" install "* ]]; then
    if [[ -e /tmp/fail ]]; then echo "E: broken"; exit 100; fi
    mkdir -p /tmp/have
    for name in "${names[@]}"; do : >"/tmp/have/${name}"; done
fi
exit 0
"""
)
PYTHON = """#!/bin/bash
printf 'smoke test: %s\\n' "$(cat /tmp/verdict 2>/dev/null || echo 0)"
exit "$(cat /tmp/verdict 2>/dev/null || echo 0)"
"""


def working_root(folder: Path) -> Root:
    """A root in ``folder`` with apt, dpkg and a Python that ends as ``/tmp/verdict`` says."""
    folder.mkdir()
    made = Root(folder, more=TOOLS)
    made.path("/tmp").chmod(0o1777)
    made.put("/proc/sys/kernel/random/boot_id", "first\n")
    for name, text in (
        ("dpkg-query", DPKG_QUERY),
        ("apt-get", APT),
        ("dpkg", "#!/bin/bash\n"),
        ("python", PYTHON),
        ("curl", TALK),
        ("thing", TALK),
    ):
        made.put(f"/bin/{name}", text, 0o755)
    return made


PLAIN = of_steps(
    step("packages", Packages(manager="apt", names=("gcc", "make"))),
    step("file", InstallFile(path="/etc/deep/x.conf", text="a\nb\n", root=True)),
    step("command", InstallCommand(words=("thing", "two words", "$(x)"), root=True)),
)


def calls(root: Root) -> list[str]:
    place = root.path("/tmp/calls")
    return place.read_text().splitlines() if place.exists() else []
