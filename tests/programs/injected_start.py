"""Breaks each function that runs when an observed process starts: injected_start.py DIRECTORY NAME ...

Each child runs our `sitecustomize` as the interpreter would, imports what it takes for torch, and says so.
Prints a JSON object per function: the child's exit status, and how often the function was called.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from injection import broken, functions_in

from stethos.settings import SITE_DIR

MODULES = ("observe.boot", "observe.session", "observe.ending", "observe.logs", "record.ring", "settings")


def start(directory: Path) -> None:
    os.environ.update(STETHOS_RUN=str(directory / "run"), STETHOS_MAIN="1", STETHOS_PYTHON="/bin/true")
    stand_in = directory / "torch"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("__version__ = '0'\nis_whole = True\n", encoding="utf-8")
    sys.path.insert(0, str(directory))
    sys.stderr = io.StringIO()
    runpy.run_path(str(SITE_DIR / "sitecustomize.py"))
    import torch

    assert torch.is_whole
    assert type(torch.__loader__).__name__ == "SourceFileLoader"


def main() -> None:
    found = functions_in(f"stethos.{name}" for name in MODULES)
    for name in sys.argv[2:] or found:
        with broken(found[name], RuntimeError) as calls:
            child = os.fork()
            if child == 0:
                try:
                    start(Path(sys.argv[1]) / name.replace("<", "").replace(">", ""))
                except BaseException:
                    os._exit(1)
                os._exit(7)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"function": name, "status": status, "calls": len(calls)}), flush=True)


if __name__ == "__main__":
    main()
