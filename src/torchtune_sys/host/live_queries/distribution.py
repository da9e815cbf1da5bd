"""The distribution of a live host that has no os-release: the distro library knows the files of many old ones."""

from __future__ import annotations

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why


def distribution(_argument: str, _timeout_s: float) -> Fact[dict[str, str]]:
    """Return name and version without lsb_release and uname, which are child processes."""
    import distro

    try:
        found = distro.LinuxDistribution(include_lsb=False, include_uname=False, include_oslevel=False)
        answer = {
            "id": found.id(),
            "like": found.like(),
            "version": found.version(),
            "name": found.name(pretty=True),
            "codename": found.codename(),
        }
    except (OSError, UnicodeError) as error:
        return Missing(Why.FAILED, "/etc/*-release", str(error))
    return answer if answer["id"] else Missing(Why.ABSENT, "/etc/*-release", "names no distribution")
