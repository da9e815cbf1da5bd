"""Look at the built site in Chromium: screenshots, accessibility by axe, and every link.

    python scripts/look_at_site.py FOLDER [--axe axe.min.js] [--chromium PATH] [--all]

Needs playwright (its Python package) and a Chromium; axe-core's ``axe.min.js`` comes from npm. FOLDER gets a PNG for each page of PAGES in
light, dark and narrow. ``--all`` asks axe of every page that is no rule and no cause, too. Exit status 1: a violation or a broken link.
"""

from __future__ import annotations

import argparse
import functools
import html
import http.server
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

SITE = Path(__file__).resolve().parent.parent / "build" / "site"
PAGES = ("index.html", "tutorials/slurm.html", "rules/index.html", "rules/dev-shm-too-small.html", "causes/clock-skew.html")
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 375, "height": 800}, "color_scheme": "light"},
}
_AXE = (
    "async () => (await axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})).violations"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--axe", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    faults = list(broken_links(SITE))
    print(f"links of {sum(1 for _ in SITE.rglob('*.html'))} pages: {len(faults)} broken", *faults[:20], sep="\n  ")
    faults += looked_at(asked.folder, asked.axe, asked.chromium, everything=asked.all)
    return 1 if faults else 0


def broken_links(site: Path) -> Iterator[str]:
    """Yield each link, picture or script of a page that leads to no file, or to no element of that name."""
    pages = {str(page.relative_to(site)): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    names = {page: set(re.findall(r'\b(?:id|name)="?([^"\s>]+)', text)) | {""} for page, text in pages.items()}
    for page, text in pages.items():
        for link in set(re.findall(r'\b(?:href|src)="?([^"\s>]+)', text)):
            if re.match(r"[a-z]+:|//", link) or page == "404.html":
                continue
            target, anchor = urldefrag(urljoin(f"/{page}", html.unescape(link)))
            place = unquote(target).lstrip("/") or "index.html"
            if not (site / place).exists() or (place in names and unquote(anchor) not in names[place]):
                yield f"{page}: {link}"


def looked_at(folder: Path, axe: Path | None, chromium: str, *, everything: bool) -> list[str]:
    """Return what axe says of the pages, each of which is kept as a picture."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    more = sorted(str(page.relative_to(SITE)) for page in [*SITE.glob("*.html"), *(SITE / "tutorials").glob("*.html")])
    pages = dict.fromkeys([*PAGES, *(more if everything else ())])
    handler = functools.partial(_Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for view, options in VIEWS.items():
            page = browser.new_context(**options).new_page()
            for name in pages:
                page.goto(f"http://127.0.0.1:{server.server_port}/{name}", wait_until="load", timeout=120_000)
                page.wait_for_timeout(300)
                if name in PAGES:
                    page.screenshot(path=str(folder / f"{name.removesuffix('.html').replace('/', '-')}.{view}.png"))
                wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                found = [f"{name} ({view}): {wide} pixels wider than the screen"] if wide > 0 else []
                if axe is not None:
                    page.evaluate(axe.read_text(encoding="utf-8"))
                    found += [_told(name, view, each) for each in page.evaluate(_AXE)]
                print(f"{name} ({view}): {len(found)} found", *found, sep="\n  ")
                faults += found
        browser.close()
        server.shutdown()
    return faults


def _told(name: str, view: str, violation: dict[str, Any]) -> str:
    where = "; ".join(" ".join(node["target"]) for node in violation["nodes"][:3])
    return f"{name} ({view}): {violation['id']} ({violation['impact']}) × {len(violation['nodes'])}: {where}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())
