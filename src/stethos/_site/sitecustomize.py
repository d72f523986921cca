"""Found first on the path of processes started by `stethos run`: begins observing them.

Loads Stethos from where it is installed without changing `sys.path`, then
hands over to the `sitecustomize` that would have run without us.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _load_package() -> None:
    """Import the `stethos` package this file belongs to, also into an interpreter where it is not installed."""
    if "stethos" in sys.modules:
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "stethos", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stethos"] = module
    spec.loader.exec_module(module)


def _begin() -> None:
    try:
        _load_package()
        from stethos.observe.boot import begin_from_environment

        begin_from_environment()
    except Exception as error:  # the program must run whatever happens to us
        sys.stderr.write(f"stethos: not observing this process: {type(error).__name__}: {error}\n")


def _run_next() -> None:
    """The next `sitecustomize` on the path, as if ours were not there."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _leave_path() -> None:
    """Take our directory off `sys.path`, where the program would not expect it; children still inherit it."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]


if sys.version_info >= (3, 11):
    _begin()
_run_next()
_leave_path()
