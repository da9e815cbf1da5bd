"""Rules on the container runtime's access to GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Install, Needs
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, need, need_any
from torchtune_sys.model.version import show, version
from torchtune_sys.rules.gates import not_in_container, nvidia_hardware, release_of


def _docker(s: Snapshot) -> None:
    nvidia_hardware(s)
    not_in_container(s)
    need_any(need(s.software).docker, "no Docker on this host")


def _installed(s: Snapshot, name: str) -> str:
    """Version of one package without its epoch; ``""`` if it is not installed. NotApplicable without dpkg's list."""
    packages = need(s.software).packages
    if absent(packages):
        raise NotApplicable("the package list is not available here")
    return need(release_of(packages, name)).rpartition(":")[2]


@rule(
    id="container-toolkit-missing",
    title="Docker lacks the NVIDIA Container Toolkit",
    severity=Severity.ADVICE,
    cause="container-toolkit-missing",
    fix=(
        Install(
            text="install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker, and restart docker"
        ),
    ),
    applies=_docker,
)
def container_toolkit_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Docker and the GPU driver are installed, but not the toolkit that makes GPUs available in containers.

    Why it matters
        docker run --gpus all fails: could not select device driver "" with capabilities: [[gpu]].

    When to leave it
        Training does not run in Docker on this host. Without the package a CDI specification of NVIDIA's is enough (docker run --device nvidia.com/gpu=all);
        a runtime that is configured without it (an archive, the GPU operator) is unknown.

    References
        https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
        https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
    """
    have = _installed(s, "nvidia-container-toolkit") or _installed(s, "nvidia-container-toolkit-base")
    specifications = known(need(s.software).cdi_drivers, {})
    if not have and specifications:
        yield Evidence(subject="CDI", seen=", ".join(specifications), verdict=Verdict.PASS, source="/etc/cdi, /run/cdi")
        return
    mode = need(s.software).runtime_mode
    if not have and not absent(mode):
        need(mode)
        why = Missing(
            Why.NOT_RECORDED,
            "nvidia-container-runtime",
            "its configuration is here, no package is",
            remedy="nvidia-ctk --version",
        )
        yield unsure("nvidia-container-toolkit", why)
        return
    yield Evidence(
        subject="nvidia-container-toolkit",
        seen=have or "not installed",
        wanted="installed",
        verdict=Verdict.PASS if have else Verdict.FAIL,
        source="installed packages",
    )


@rule(
    id="docker-may-lose-gpus",
    title="Containers lose their GPUs when systemd reloads",
    severity=Severity.ADVICE,
    cause="container-lost-gpu-cgroup",
    fix=(
        Install(text="upgrade nvidia-container-toolkit to 1.18 or later", needs=Needs.SERVICE_RESTART),
        Advice(text="or create the links at each boot: sudo nvidia-ctk system create-dev-char-symlinks --create-all"),
    ),
    applies=_docker,
)
def docker_may_lose_gpus(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Docker lets systemd manage its cgroups, the toolkit adds GPUs without systemd's knowledge, and /dev/char lacks their links.

    Why it matters
        At the next systemctl daemon-reload, which any package upgrade may run, systemd removes the devices that it has no record of:
        "Failed to initialize NVML: Unknown Error" in containers that have been training for days.

    When to leave it
        Containers are started with CDI devices or with --device for each node, runc is 1.1.7 or later and systemd 240
        or later.

    References
        https://github.com/NVIDIA/nvidia-container-toolkit/issues/48 and /1227 (1.18 uses CDI unless told otherwise)
        https://github.com/opencontainers/runc/issues/3671 (links in /dev/char, needed by runc 1.1.3 to 1.1.6)
        https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html
    """
    toolkit = _installed(s, "nvidia-container-toolkit") or _installed(s, "nvidia-container-toolkit-base")
    if not toolkit:
        raise NotApplicable("no NVIDIA container toolkit is installed")
    facts = need(s.software)
    mode = "auto" if absent(facts.runtime_mode) else facts.runtime_mode
    ways = (
        ("the cgroup driver is cgroupfs", need(facts.cgroup_driver) != "systemd"),
        (f"toolkit {toolkit}", version(toolkit) >= (1, 18) and need(mode) != "legacy"),
        ("CDI mode", need(mode) in ("cdi", "jit-cdi")),
    )
    safe = next((why for why, good in ways if good), "") or ("/dev/char has the links" if need(facts.device_links) else "")
    yield Evidence(
        subject="docker",
        seen=safe or f"systemd cgroup driver, toolkit {toolkit}, no /dev/char/195:255",
        wanted="CDI, or links in /dev/char",
        verdict=Verdict.PASS if safe else Verdict.FAIL,
        source="/etc/docker/daemon.json, /dev/char",
    )


@rule(
    id="cdi-specification-stale",
    title="A CDI specification names the libraries of another driver version",
    severity=Severity.WARNING,
    cause="cdi-specification-stale",
    fix=(Advice(text="generate it again: sudo nvidia-ctk cdi generate --output=FILE (and enable nvidia-cdi-refresh)"),),
)
def cdi_specification_stale(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Podman and containerd mount what the specification lists; it was generated before the driver was replaced.

    Why it matters
        Containers fail to start because a listed file no longer exists, or start with libraries that do not match the kernel
        module.

    When to leave it
        No container uses CDI devices.

    References
        https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
    """
    nvidia_hardware(s)
    not_in_container(s)
    specs = need(s.software).cdi_drivers
    if absent(specs) or not need(specs):
        raise NotApplicable("no CDI specification of NVIDIA's")
    module = need(need(s.driver).module_version)
    for path, named in need(specs).items():
        fits = version(named) == version(module)
        verdict = Verdict.PASS if fits else Verdict.FAIL
        yield Evidence(subject=path, seen=f"driver {named}", wanted=f"driver {module}", verdict=verdict, source=path)


@rule(
    id="docker-refuses-clone3",
    title="This Docker version blocks clone3, so programs of newer images cannot start threads",
    severity=Severity.WARNING,
    cause="container-seccomp-too-old",
    fix=(Install(text="install docker-ce 20.10.10 or later", needs=Needs.SERVICE_RESTART),),
    applies=_docker,
)
def docker_refuses_clone3(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Before 20.10.10, Docker's default seccomp profile rejects clone3 with EPERM, so that glibc 2.34 does not fall back to clone.

    CentOS 7's docker 1.13, which was never fixed, does the same.

    Why it matters
        No thread can be started in images of Ubuntu 22.04 and later, Debian 12 or RHEL 9: "can't start new thread"; OpenBLAS and
        apt fail in the same way.

    When to leave it
        Only older images run here, or containers use their own seccomp profile.

    References
        https://github.com/moby/moby/pull/42681
        https://docs.docker.com/engine/release-notes/20.10/ (20.10.10)
    """
    name = "docker-ce"
    have = _installed(s, name)
    if not have:
        name = "docker"
        have = _installed(s, name)
        if need(s.software).manager != "rpm" or not have or version(have) >= (1, 14):
            raise NotApplicable("Docker is not Docker's own package; distributions carry the fix back")
    floor = (20, 10, 10)
    verdict = Verdict.PASS if version(have) >= floor else Verdict.FAIL
    yield Evidence(subject=name, seen=have, wanted=f">= {show(floor)}", verdict=verdict, source="installed packages")
