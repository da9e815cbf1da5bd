"""What is in the bundle, as CycloneDX JSON. The same bundle gives the same bytes: no time, and a serial number from its hash."""

from __future__ import annotations

import json
import uuid
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

from lock import digest
from packaging.utils import canonicalize_name, parse_wheel_filename


def sbom(made: Path, own: Path, wheels: list[Path]) -> bytes:
    """Return the bill of materials of ``made``, which holds the project's ``own`` wheel and those that it needs."""
    packed = digest(made)
    root = _component(own, [own])
    described = {**root, "type": "application", "hashes": [_hash(packed)], "bom-ref": made.name, "name": made.name}
    by_name: dict[str, list[Path]] = {}
    for path in sorted({path.name: path for path in wheels}.values(), key=lambda path: path.name):
        by_name.setdefault(canonicalize_name(parse_wheel_filename(path.name)[0]), []).append(path)
    components = [root, *(_component(paths[0], paths) for _, paths in sorted(by_name.items()))]
    told = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, packed)}",
        "version": 1,
        "metadata": {"component": described},
        "components": components,
        "dependencies": [{"ref": made.name, "dependsOn": [one["bom-ref"] for one in components]}],
    }
    return (json.dumps(told, indent=1, sort_keys=True) + "\n").encode()


def _component(wheel: Path, files: list[Path]) -> dict[str, Any]:
    """One package; each of its wheels (one for each CPython) with its hash."""
    name, version = canonicalize_name(parse_wheel_filename(wheel.name)[0]), str(parse_wheel_filename(wheel.name)[1])
    found: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "externalReferences": [{"type": "distribution", "url": path.name, "hashes": [_hash(digest(path))]} for path in files],
    }
    licence = _licence(wheel)
    return {**found, "licenses": [licence]} if licence else found


def _licence(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata: Message = Parser().parsestr(archive.read(name).decode())
    expression, text = metadata.get("License-Expression"), metadata.get("License")
    if expression:
        return {"expression": str(expression)}
    return {"license": {"name": str(text).splitlines()[0]}} if text else {}


def _hash(content: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": content}
