"""Puts the pages at the top of the repository into the site, with their links turned to where the site has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
TOP = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "SECURITY.md": "SECURITY.md",
       "CONTRIBUTING.md": "CONTRIBUTING.md"}  # fmt: skip
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the top."""
    for name, place in TOP.items():
        text = _LINK.sub(lambda found: f"]({_from_top(found[1])})", (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that lead out of docs/ lead to the same page of the site, or to its name where the site has none."""
    return _LINK.sub(lambda found: _inside(found[0], found[1]), markdown)


def _from_top(target: str) -> str:
    """A link of a page at the top, as its copy in docs/ has it."""
    path, _, anchor = target.partition("#")
    place = TOP.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}")
    return f"{place}#{anchor}" if anchor else place


def _inside(link: str, target: str) -> str:
    path = target.partition("#")[0]
    if not path.startswith("../"):
        return link
    name = path.lstrip("./")
    if name in TOP:
        return link.replace(f"../{name}", TOP[name])
    if (ROOT / "docs" / name).exists():  # from a page of a folder inside docs
        return link
    return f"] (`{name}`)"  # a file of the repository: named, not linked
