"""Platforms behind walls: containers, batch jobs, WSL2, notebooks for rent, hosted runners."""

from __future__ import annotations

from machines import (
    Recording,
    cpus,
    cut,
    environment,
    gpus,
    made_by,
    nodes,
    ordinary,
    over,
    status,
    system,
    torch,
    without_gpus,
    x86,
)


def wsl2_docker_desktop() -> Recording:
    """A container of Docker Desktop on WSL2: Windows' libraries mounted by the NVIDIA toolkit, no node but /dev/dxg."""
    host = over(ordinary("wsl2-3080"), files={"/.dockerenv": "", "/proc/1/comm": "bash\n", "/proc/self/cgroup": "0::/\n"})
    host = over(host, links={"/proc/self/ns/pid": "pid:[4026532841]"})
    host = environment(host, WSL_DISTRO_NAME=None, WSL_INTEROP=None, WSLENV=None, NVIDIA_VISIBLE_DEVICES="all")
    return system(host, name="b1946ac92492")


def podman_rootless() -> Recording:
    """podman run --device nvidia.com/gpu=all, as root of a user namespace."""
    host = cut(ordinary("docker-workstation"), "/.dockerenv")
    return over(
        host,
        files={"/run/.containerenv": 'engine="podman-5.4.0"\nrootless=1\n', "/proc/self/uid_map": "0 1000 1\n1 100000 65536\n"},
        env={"container": "podman"},
    )


def kubernetes_static() -> Recording:
    """The kubelet's static CPU manager: a cpuset and a quota of 16; /dev/shm from a volume in memory."""
    host = ordinary("k8s-h100")
    host = over(
        host,
        files={"/sys/fs/cgroup/cpuset.cpus.effective": "4-19\n", "/sys/fs/cgroup/cpu.max": "1600000 100000\n"},
        answers={"affinity": "4-19"},
    )
    return status(host, Cpus_allowed_list="4-19")


def apptainer() -> Recording:
    """apptainer exec --nv in a Slurm job: the host's namespaces and cgroup, libraries bound to /.singularity.d/libs."""
    host = ordinary("slurm-a100")
    names = [f"lib{name}.so{end}" for name in ("cuda", "nvidia-ml") for end in ("", ".1")]
    return over(
        cut(host, *(f"/usr/lib64/lib{name}.so" for name in ("cuda", "nvidia-ml"))),
        files={"/.singularity.d/env/90-environment.sh": "", "/proc/1/comm": "systemd\n"},
        stats={f"/.singularity.d/libs/{name}": {"mode": 33188, "uid": 0, "gid": 0, "size": 69418864} for name in names},
        env={
            "APPTAINER_CONTAINER": "/scratch/images/pt.sif",
            "APPTAINER_NAME": "pt.sif",
            "LD_LIBRARY_PATH": "/.singularity.d/libs",
        },
    )


def slurm_cgroup_v1() -> Recording:
    """A job step under cgroup v1 (Rocky 8): its own cpuset of 32, 250 GiB, one GPU by GRES."""
    host = ordinary("rocky8-v100")
    job = "slurm/uid_1000/job_4242/step_0"
    host = cut(host, "/sys/fs/cgroup")
    lines = [f"{number}:{name}:/{job}" for number, name in ((12, "cpuset"), (11, "memory"), (10, "devices"), (9, "freezer"))]
    span = "0-11"
    nvml = host["answers"]["nvml"]
    host = status(
        over(host, answers={"affinity": span, "nvml": {**nvml, "devices": nvml["devices"][:1], "p2p": []}}),
        Cpus_allowed_list=span,
    )
    mounts = [line for line in host["files"]["/proc/self/mountinfo"] if "cgroup2" not in line]
    mounts += [
        f"{60 + n} 24 0:{60 + n} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
        for n, name in enumerate(("cpuset", "memory", "devices", "freezer"))
    ]
    return over(
        host,
        files={
            "/proc/self/cgroup": [*lines, "1:name=systemd:/system.slice/slurmd.service"],
            "/proc/self/mountinfo": mounts,
            f"/sys/fs/cgroup/cpuset/{job}/cpuset.cpus": f"{span}\n",
            f"/sys/fs/cgroup/cpuset/{job}/cpuset.mems": "0-1\n",
            f"/sys/fs/cgroup/memory/{job}/memory.limit_in_bytes": f"{200 << 30}\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        env={"SLURM_JOB_ID": "4242", "SLURM_NNODES": "1", "SLURM_NTASKS": "1", "CUDA_VISIBLE_DEVICES": "0"},
    )


def lxc() -> Recording:
    """A privileged LXC container with its own systemd, GPU nodes bound in (Proxmox)."""
    host = ordinary("desktop-4090")
    host = over(
        host, files={"/run/systemd/container": "lxc\n"}, links={"/proc/self/ns/pid": "pid:[4026532841]"}, env={"container": "lxc"}
    )
    return system(host, name="ct-105", kernel="6.8.12-9-pve")


def colab() -> Recording:
    """One T4, two threads of a Xeon, root, no systemd, a container without a namespace of its own for /sys."""
    host = system(
        ordinary("docker-workstation"),
        name="7c9a0f5f1b2d",
        kernel="6.6.105+",
        os_={"PRETTY_NAME": "Ubuntu 22.04.5 LTS", "NAME": "Ubuntu", "VERSION_ID": "22.04", "ID": "ubuntu", "ID_LIKE": "debian"},
    )
    host = made_by(host, "Google", "Google Compute Engine", "Google")
    host = cpus(
        host,
        packages=["0-1"],
        info=[x86("Intel(R) Xeon(R) CPU @ 2.20GHz", flags="fpu hypervisor sse4_2 avx avx2")],
        threads=["0-1"],
    )
    host = nodes(host, {0: ("0-1", 13_290_000)})
    host = gpus(
        host,
        ["pci0000:00/0000:00:04.0"],
        ids="10de:1eb8",
        nodes_=[-1],
        driver="550.54.15",
        name="Tesla T4",
        architecture="Turing",
        compute_capability=[7, 5],
        memory_total_bytes=16_106_127_360,
        power_limit_mw=70_000,
        power_default_mw=70_000,
        pcie_gen=3,
        pcie_gen_max=3,
        ecc=True,
        ecc_uncorrected_volatile=0,
    )
    line = ["NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"]
    # Google's image mounts the driver's libraries where ld.so.cache has none, and names the directory
    names = ("libcuda.so", "libnvidia-ml.so")
    moved = {path: value for path, value in host["links"].items() if path.rpartition("/")[2].startswith(names)}
    moved |= {path: value for path, value in host["stats"].items() if path.rpartition("/")[2].startswith(names)}
    there = {f"/usr/lib64-nvidia/{path.rpartition('/')[2]}": value for path, value in moved.items()}
    host = over(
        cut(host, *moved),
        files={"/proc/driver/nvidia/version": line},
        links={path: value for path, value in there.items() if isinstance(value, str)}
        | {"/usr/lib64-nvidia/libcuda.so": "libcuda.so.1"},
        stats={path: value for path, value in there.items() if not isinstance(value, str)},
        env={"LD_LIBRARY_PATH": "/usr/lib64-nvidia"},
    )
    return torch(
        over(host, answers={"nvml": {**host["answers"]["nvml"], "cuda_driver_version": "12.4"}}), "2.8.0+cu126", cuda="12.6"
    )


def github_runner() -> Recording:
    """A hosted runner: four virtual CPUs of Azure, no GPU, the CPU wheel."""
    host = without_gpus(system(ordinary("aws-g5"), name="runnervm", kernel="6.11.0-1018-azure"))
    host = made_by(host, "Microsoft Corporation", "Virtual Machine", "American Megatrends International, LLC.")
    model = x86("AMD EPYC 7763 64-Core Processor", "AuthenticAMD", "fpu hypervisor sse4_2 avx avx2")
    host = cpus(host, packages=["0-3"], info=[model], threads=["0-1", "2-3"])
    return environment(torch(nodes(host, {0: ("0-3", 16_370_000)}), "2.11.0+cpu"), CI="true", GITHUB_ACTIONS="true")
