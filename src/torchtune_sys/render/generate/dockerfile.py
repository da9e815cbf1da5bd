"""A container image as a Dockerfile, and the commands and the pod that start it as it must be started."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys import __version__
from torchtune_sys.model.image import Flag, Image
from torchtune_sys.render.generate.install import refusal
from torchtune_sys.render.generate.script import quote
from torchtune_sys.render.layout import clean
from torchtune_sys.render.templates import environment, made_from

NAME = "training"
MARK = "# Made by torchtune-sys"
SMOKE = "/usr/local/share/torchtune-sys/smoke.py"
_TRAIN = "torchrun train.py"


def dockerfile(image: Image) -> str:
    """Return the Dockerfile; its context holds smoke.py, and the folder of an offline build. Needs an image that was not refused."""
    assert image.base is not None and image.wheel is not None
    template = environment({"clean": clean, "comment": comment}).get_template("dockerfile/Dockerfile.j2")
    return template.render(
        version=__version__,
        image=image,
        names=" ".join(name for item in image.content for name in item.names),
        programs=[program for item in image.content for program in item.programs],
        libraries=", ".join(f"'{library}'" for item in image.content for library in item.libraries),
        suffix="packages (*.deb)" if image.base.manager == "apt" else "packages (*.rpm)",
        installs=list(_installs(image)),
        command=command(image),
        build=build("docker", image),
        run=list(rows("docker", image)),
        train=_TRAIN,
    )


def _installs(image: Image) -> Iterator[str]:
    """Yield what pip is asked for, one call after the other: an index of PyTorch's need not have what PyPI has."""
    torch, partners = (" ".join(quote(word) for word in words) for words in (image.specifiers, image.partners))
    if image.offline:
        yield f"--no-index --find-links /mnt/offline {torch} {partners}"
    elif image.wheel is not None and image.wheel.index:
        yield partners
        yield f"--index-url {image.wheel.index} {torch}"
    else:
        yield f"{torch} {partners}"


def comment(text: str) -> str:
    """Return ``text`` as lines of a comment, those after the first further in.

    >>> print(comment("a" * 80 + " " + "b" * 80).replace("a" * 80, "a").replace("b" * 80, "b"))
    # a
    #    b
    """
    import textwrap

    return "\n".join(
        textwrap.wrap(
            clean(text), 120, initial_indent="# ", subsequent_indent="#    ", break_long_words=False, break_on_hyphens=False
        )
    )


def refused(image: Image) -> str:
    """Return what is printed in place of a Dockerfile: comments alone, which no builder takes."""
    lines = [f"{MARK} {__version__} generate dockerfile, from {clean(made_from(image.origin))}", "# There is no Dockerfile:"]
    for item in image.refused:
        lines += [f"# {line}" for line in refusal(item)]
    return "\n".join(lines) + "\n"


def promises(image: Image) -> str:
    return ",".join(flag.promise for flag in image.flags if flag.promise)


def command(image: Image) -> str:
    """Return CMD in its exec form: no shell stands between the container's first process and its signals."""
    import msgspec

    return msgspec.json.encode(["python", SMOKE, "--promised", promises(image)]).decode().replace('","', '", "')


def build(program: str, image: Image) -> str:
    return f"{program} build --tag {NAME} {'--network=none ' if image.offline else ''}."


def _words(program: str, flag: Flag) -> tuple[str, ...]:
    return flag.podman if program == "podman" else flag.docker


def rows(program: str, image: Image) -> Iterator[str]:
    """Yield the command that starts a container, one flag a line."""
    words = [f"{program} run --rm", *(" ".join(found) for flag in image.flags if (found := _words(program, flag)))]
    yield from (f"{word} \\" for word in words[:1])
    yield from (f"    {word} \\" for word in words[1:])
    yield f"    {NAME} {_TRAIN}"


def _script(program: str, image: Image) -> str:
    lines = [
        "#!/bin/sh",
        f"{MARK} {__version__} generate dockerfile, for {clean(image.host) or 'a host without a name'}",
        "set -eu",
    ]
    for flag in image.flags:
        words = " ".join(_words(program, flag))
        lines.append(comment(f"{words or flag.key + ' needs no flag'}: {flag.why} [{flag.source}]"))
    lines += ["# Without a command the container runs the training smoke test.", build(program, image)]
    found = list(rows(program, image))
    return "\n".join([*lines, *found[:-1], f'    {NAME} "$@"']) + "\n"


def docker(image: Image) -> str:
    """Return a shell script that builds the image and runs what it is given in it."""
    return _script("docker", image)


def podman(image: Image) -> str:
    """Return the same for Podman."""
    return _script("podman", image)


_NOT_A_PODS = {
    "nofile": "open files: LimitNOFILE=1048576 in the unit of containerd or CRI-O",
    "memlock": "locked memory: LimitMEMLOCK=infinity in the unit of containerd or CRI-O; IPC_LOCK does not reach a user that is not root",
    "tasks": "processes and threads: podPidsLimit: -1 in the kubelet's configuration",
    "amd-gpus": "the group that may open /dev/kfd: its number below securityContext.supplementalGroups",
    "infiniband": "RDMA cards: the resource of your device plugin, below limits",
}


def kubernetes(image: Image) -> str:
    """Return a pod, whose comments say what a pod cannot ask for."""
    flags = {flag.key: flag for flag in image.flags}
    lines = [f"{MARK} {__version__} generate dockerfile, for {clean(image.host) or 'a host without a name'}"]
    owed = [comment(f"- {_NOT_A_PODS[key]}") for key in flags if key in _NOT_A_PODS]
    lines += ["# What a pod cannot ask for is the node's; the smoke test names what is missing:", *owed]
    lines += ["apiVersion: v1", "kind: Pod", "metadata:", f"  name: {NAME}", "spec:", "  restartPolicy: Never"]
    if "network" in flags:
        lines += [f"  # {flags['network'].why}", "  hostNetwork: true", "  dnsPolicy: ClusterFirstWithHostNet"]
    lines += ["  securityContext:", "    runAsNonRoot: true", "  containers:", f"    - name: {NAME}"]
    lines += [
        f"      image: {NAME}",
        "      # Without a command it runs the training smoke test.",
        f"      # command: [{', '.join(_TRAIN.split())}]",
    ]
    lines += ["      securityContext:", "        allowPrivilegeEscalation: false"]
    if "numa" in flags:
        lines += ["        # containerd's seccomp profile allows memory policies with it (containerd pull request 7167)"]
        lines += ["        capabilities:", '          add: ["SYS_NICE"]']
    for key, resource in (("gpus", "nvidia.com/gpu"), ("amd-gpus", "amd.com/gpu")):
        if key in flags:
            lines += ["      resources:", "        limits:", f'          {resource}: "{flags[key].amount}"']
    lines += ["      volumeMounts:", "        - name: shm", "          mountPath: /dev/shm", "  volumes:"]
    lines += [f"    # {flags['shm'].why.partition(':')[0]}", "    - name: shm", "      emptyDir:", "        medium: Memory"]
    return "\n".join([*lines, f"        sizeLimit: {flags['shm'].amount}Mi"]) + "\n"


FORMS = {"dockerfile": dockerfile, "docker": docker, "podman": podman, "kubernetes": kubernetes}
