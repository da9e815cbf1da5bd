"""A hook of MkDocs: the README is the site's first page, and what documents link to outside docs/ is part of the site, below ``repository/``.

So the same relative links work in the checkout, where the code is hosted, and on the site, and a strict build notices a broken one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the README, and each file outside docs/ to which a page links; ``config`` is MkDocs'."""
    todo = [ROOT / "README.md", *(Path(str(file.abs_src_path)) for file in files if file.src_uri.endswith(".md"))]
    seen = set(todo[1:])
    for page in todo:
        if page not in seen and not page.is_relative_to(DOCS):
            files.append(File.generated(config, placed(page), abs_src_path=str(page)))
        seen.add(page)
        if page.suffix == ".md":
            todo += [target for target in linked(page) if target not in seen and not target.is_relative_to(DOCS)]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to what lies outside docs/ to its place on the site."""
    del config, files
    source, here = Path(page.file.abs_src_path), posixpath.dirname(page.file.src_uri)

    def led(found: re.Match[str]) -> str:
        target = resolved(source, found[2])
        return found[0] if target is None else f"{found[1]}{posixpath.relpath(placed(target), here or '.')}{found[3]}"

    return _LINK.sub(led, markdown)


def linked(page: Path) -> Iterator[Path]:
    """Yield the files of the checkout to which a page links."""
    for _, link, _ in _LINK.findall(page.read_text(encoding="utf-8")):
        target = resolved(page, link)
        if target is not None:
            yield target


def resolved(page: Path, link: str) -> Path | None:
    """Return the file that a relative link names; None where there is none, which MkDocs then says."""
    target = (page.parent / link).resolve()
    if target.is_dir():
        target /= "README.md"
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def placed(target: Path) -> str:
    """Return where a file lies on the site, relative to its root."""
    if target == ROOT / "README.md":
        return "index.md"
    return str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else f"repository/{target.relative_to(ROOT)}"
