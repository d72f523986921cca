"""The built page: a few files that lie in the package."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

STATIC = Path(__file__).resolve().parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_NOT_BUILT = (
    "<!doctype html><meta charset=utf-8><title>Stethos</title>"
    "<p>The page has not been built into this installation. Run <code>make web</code>; the JSON under /api/ works.</p>"
)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent."""

    content: bytes
    media_type: str


class PageFiles:
    """Every file of the page by its address; read once, so that no request reaches the file system."""

    def __init__(self, directory: Path = STATIC) -> None:
        self._directory = directory

    @property
    def is_built(self) -> bool:
        return "/" in self.assets and (self._directory / "index.html").is_file()

    @cached_property
    def assets(self) -> dict[str, Asset]:
        found = {"/": Asset(_NOT_BUILT.encode(), "text/html; charset=utf-8")}
        if self._directory.is_dir():
            for path in sorted(self._directory.rglob("*")):
                if path.is_file():
                    address = "/" + path.relative_to(self._directory).as_posix()
                    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
                    text = "; charset=utf-8" if kind.startswith("text/") else ""
                    found["/" if address == "/index.html" else address] = Asset(path.read_bytes(), kind + text)
        return found

    def text_of(self, suffix: str) -> str:
        """All scripts (`.js`) or all styles (`.css`) of the page, one after the other."""
        parts = [one.content.decode() for address, one in self.assets.items() if address.endswith(suffix)]
        return "\n".join(parts)
