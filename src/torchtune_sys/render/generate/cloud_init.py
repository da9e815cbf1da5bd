"""User data for cloud-init: it holds the provisioning script, or where to fetch it, and what runs that at each start of the host."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator

from torchtune_sys import __version__
from torchtune_sys.knowledge.cloud_limits import limits
from torchtune_sys.model.provision import Provision
from torchtune_sys.render.generate.script import quote
from torchtune_sys.render.layout import clean

SCRIPT = "/var/lib/torchtune-sys/cloud/provision.sh"
START_AGAIN = 10
"""Exit status of the provisioning script where the host must be started again."""
_COLUMNS = 76


def user_data(value: Provision, script: str, url: str = "") -> str:
    """Return the user data; ``script`` is the provisioning script. With ``url`` it is fetched from there, and must be the same to the byte."""
    from torchtune_sys.render.templates import environment

    made = environment({"quote": quote, "comment": clean})
    per_boot = made.get_template("cloud-init/per-boot.sh.j2").render(
        script=SCRIPT,
        url=url,
        sum=hashlib.sha256(script.encode()).hexdigest(),
        proves="smoke" in value.stages,
        start_again=START_AGAIN,
    )
    return made.get_template("cloud-init/user-data.yaml.j2").render(
        version=__version__,
        host=value.host or "hosts of one kind",
        origin=value.origin,
        stages=value.stages,
        about=(value.system, *(f"trains with {value.python}" for _ in ("smoke",) if "smoke" in value.stages)),
        script=SCRIPT,
        held=[] if url else _rows(script),
        per_boot=per_boot.splitlines(),
    )


def _rows(text: str) -> list[str]:
    """Compressed, in base64. The time of the compressing is left out, so that the same script gives the same user data."""
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    return [packed[start : start + _COLUMNS] for start in range(0, len(packed), _COLUMNS)]


def fits(text: str) -> Iterator[str]:
    """Yield how large the user data is, and for which clouds it is too large."""
    plain = len(text.encode())
    packed = len(gzip.compress(text.encode(), 9, mtime=0))
    yield f"{plain} bytes of user data, {packed} after gzip -9, which cloud-init unpacks by itself"
    for limit in limits():
        if min(plain, plain if limit.is_text else packed) > limit.size_bytes:
            yield f"too large for {limit.cloud} ({limit.size_bytes} bytes): --url, or fewer --stages"
        elif plain > limit.size_bytes:
            yield f"for {limit.cloud} ({limit.size_bytes} bytes) only after gzip -9"
