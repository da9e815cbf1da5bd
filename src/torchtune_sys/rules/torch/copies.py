"""Rules on packages that are installed more than once: which copy is imported."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.facts.python import Distribution
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, need, need_if_there
from torchtune_sys.rules.gates import torch_build

_OF_DISTRIBUTION = pattern(r"/usr/lib/python3/dist-packages|/usr/lib(?:64)?/python3\.[0-9]{1,2}/site-packages")
"""Where Debian and Ubuntu (the first), and Fedora, RHEL, SUSE and Arch put Python packages of their own."""


@rule(
    id="torch-installed-twice",
    title="A package that training needs is installed twice on the interpreter's path",
    severity=Severity.WARNING,
    fix=(
        Advice(text="remove the unwanted copy: pip uninstall it where it is installed, or remove that location from PYTHONPATH"),
    ),
)
def torch_installed_twice(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch or one of its libraries is in two entries of sys.path, in different versions: the first one is imported. A NumPy of the
    distribution that comes later is not counted: what pip installs goes before it by design.

    Why it matters
        The version that pip shows may not be the one that runs, and torch may load libraries of the other copy.

    When to leave it
        The environment deliberately overlays a system installation (--system-site-packages), and the first copy is the one you
        want.

    References
        https://docs.python.org/3/library/site.html; https://wiki.debian.org/Python (dist-packages)
    """
    torch_build(s)
    places: dict[str, list[Distribution]] = {}
    for item in need(need(s.python).distributions):
        if not item.build and item.location not in ("pip", "conda"):
            places.setdefault(item.name, []).append(item)
    for name in ("torch", "torchvision", "torchaudio", "triton", "numpy"):
        found = places.get(name, [])
        if name == "numpy":  # apt and dnf bring it with much else
            found = [
                item for item in found if item.location == found[0].location or not _OF_DISTRIBUTION.fullmatch(item.location)
            ]
        if len({item.location for item in found}) > 1 and len({item.version for item in found}) > 1:
            both = ", ".join(f"{item.version} in {item.location}" for item in found)
            yield Evidence(subject=name, seen=both, wanted="one", source="sys.path")
        elif len(found) > 1 and len({item.location for item in found}) == 1:
            both = " and ".join(item.version for item in found)
            yield Evidence(
                subject=name,
                seen=f"metadata of {both} in {found[0].location}",
                wanted="one",
                source=found[0].location,
                fix=(
                    Advice(
                        text=f"pip uninstall {name} until it says that nothing is installed, then install it once (an installation was interrupted or mixed)"
                    ),
                ),
            )


@rule(
    id="user-site-shadows-environment",
    title="Packages in the user's home directory take precedence over the environment's",
    severity=Severity.WARNING,
    fix=(EnvironmentVariable(name="PYTHONNOUSERSITE", value="1"),),
)
def user_site_shadows(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Packages installed with pip --user (in ~/.local/lib) hide the environment's own.

    Why it matters
        conda environments and containers use the user's site directory, virtual environments do not: the same command trains with
        different libraries, depending on whose home directory it runs with.

    When to leave it
        The interpreter has no environment of its own, and everything is installed with --user (not reported where torch is nowhere else).

    References
        https://docs.python.org/3/using/cmdline.html#envvar-PYTHONNOUSERSITE
    """
    python = need(s.python)
    user = need_if_there(python.user_site, "no user site directory is in use")
    found = need(python.distributions)
    torches = [
        item.location for item in found if item.name == "torch" and not item.build and item.location not in ("pip", "conda")
    ]
    if torches and set(torches) == {user}:
        raise NotApplicable("torch itself is installed there alone: without that directory there would be none")
    there = {item.name: item for item in found if item.location == user}
    for name in ("torch", "torchvision", "torchaudio", "triton", "numpy"):
        other = next(
            (item for item in found if item.name == name and item.location not in (user, "pip", "conda") and not item.build), None
        )
        if name in there and other is not None:
            seen = f"{there[name].version} in {user}, {other.version} in {other.location}"
            yield Evidence(subject=name, seen=seen, wanted="one", source="sys.path")


@rule(
    id="module-hidden-in-working-directory",
    title="A file in the working directory has the name of a module that torch imports",
    severity=Severity.WARNING,
    fix=(
        Advice(text="rename it, or start the training from another directory"),
        Advice(text="python -P, or PYTHONSAFEPATH=1 (Python 3.11 and later), leaves the script's own directory off sys.path"),
    ),
)
def module_hidden_in_working_directory(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A file or package here is called like a module of Python's library, torch or a package that it requires (random.py, queue.py, torch/).

    Why it matters
        Python puts the directory of the script first on sys.path, or the working directory with -m (python -m torch.distributed.run) and -c. "import
        torch" then finds this file in place of the module, and ends with an AttributeError, an ImportError or "Failed to load PyTorch C extensions".

    When to leave it
        The training is started neither from this directory with -m or -c, nor by a script that lies in it.

    References
        https://docs.python.org/3/library/sys_path_init.html; https://docs.python.org/3/using/cmdline.html#envvar-PYTHONSAFEPATH
    """
    torch_build(s)
    if need(need(s.session).env).get("PYTHONSAFEPATH"):
        raise NotApplicable("PYTHONSAFEPATH is set: neither the script's directory nor the working directory is searched")
    for path in need_if_there(need(s.python).hiding_here, "the working directory is on sys.path anyway, or nobody looked there"):
        name = path.removesuffix("/__init__.py").rpartition("/")[2].removesuffix(".py")
        yield Evidence(
            subject=path, seen=f"imported in place of the module {name}", wanted="another name", source="working directory"
        )
