"""Begins observing in a process: by `stethos run` through the environment, or by `stethos.watch`.

torch is never imported from here. If it is there, it is watched at once; if
not, an import hook waits for it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stethos.observe.ending import EndWatch
from stethos.observe.frameworks.table import watch_frameworks
from stethos.observe.loggers import LoggerWatch
from stethos.observe.logs import LogWatch
from stethos.observe.session import Session
from stethos.observe.warnings_shown import WarningWatch
from stethos.settings import Settings, from_environment
from stethos.wiring import AGENT, NVFLARE_CLIENT, Link

if TYPE_CHECKING:
    from stethos.observe.torch_hooks import TorchHooks

# What adapters do when a process of a run imports a framework: its module, then the adapter's function.
COMPANIONS: dict[str, Link] = {"nvflare.client.cell.api": NVFLARE_CLIENT}
# Processes of torch's and Ray's own that never train.
_HELPERS = (
    "torch/_inductor/compile_worker",
    "multiprocessing.resource_tracker",
    "/ray/autoscaler/",
    "/ray/dashboard/",
    "/ray/_private/log_monitor",
    "/ray/_private/runtime_env/agent",
)


class Recording:
    """Everything that observes this process, and the way to undo it."""

    def __init__(self, settings: Settings) -> None:
        self.session = Session(settings)
        self.torch_hooks: TorchHooks | None = None
        self._finders: list[_ImportFinder] = []

    def begin(self) -> None:
        guard = self.session.guard
        guard.run("traceback", lambda: EndWatch(self.session).install())
        guard.run("logs", lambda: LogWatch(self.session).install())
        guard.run("warnings", lambda: WarningWatch(self.session).install())
        guard.run("loggers", lambda: LoggerWatch(self.session).install(self._after_import))
        guard.run("frameworks", lambda: watch_frameworks(self.session, self._after_import))
        if self.session.settings.agent:
            self.session.on_open.append(lambda session: AGENT.load()(session))
        if self.session.settings.is_main:
            guard.run("open", self.session.open)
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "compile"):
            self.watch_torch()
        else:
            self._after_import("torch", lambda module: self.watch_torch())

    def watch_companions(self) -> None:
        """Tell adapters when a framework of theirs is imported."""
        for name, adapter in COMPANIONS.items():
            self._after_import(name, functools.partial(self._watch_companion, adapter))

    def _watch_companion(self, adapter: Link, module: ModuleType) -> None:
        self.session.guard.run("adapter", lambda: adapter.load()(module))

    def _after_import(self, name: str, action: Callable[[ModuleType], None]) -> None:
        finder = _ImportFinder(name, action)
        self._finders.append(finder)
        sys.meta_path.insert(0, finder)

    def watch_torch(self) -> None:
        """Install the callbacks; torch has been imported."""
        self.session.guard.run("torch", self._watch_torch)

    def _watch_torch(self) -> None:
        from stethos.observe.torch_hooks import TorchHooks

        if self.torch_hooks is None:
            self.torch_hooks = TorchHooks(self.session)
        self.torch_hooks.install()
        torch = sys.modules["torch"]
        self.session.note_facts({"torch": torch.__version__, "versions": _versions()})

    def turn_ended(self) -> None:
        """A client's turn of this thread is over: a trace of its next training iteration would see the server's work
        and the next client's evaluation, so it is given up."""
        tracer = self.torch_hooks.steps.tracer if self.torch_hooks is not None else None
        if tracer is not None and tracer.is_tracing():
            tracer.stop()

    def end(self) -> None:
        """Stop observing and undo every change to torch, logging and the interpreter."""
        for finder in self._finders:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
        self.session.close()


class _Current:
    """The recording of this process, if any."""

    recording: Recording | None = None


def current() -> Recording | None:
    """The recording of this process; None if nothing is recorded."""
    return _Current.recording


def current_session() -> Session | None:
    """What rows of this process are written through; None if nothing is recorded."""
    recording = _Current.recording
    return None if recording is None else recording.session


def begin(settings: Settings) -> Recording:
    """Start recording this process, once."""
    if _Current.recording is None:
        _Current.recording = Recording(settings)
        _Current.recording.begin()
    return _Current.recording


def end() -> None:
    """End the recording of this process, if there is one, and take every callback away."""
    if _Current.recording is not None:
        _Current.recording.end()
        _Current.recording = None


def begin_from_environment() -> None:
    """Called by `sitecustomize` in every Python child of `stethos run`."""
    settings = from_environment()
    if settings.run_dir is None or any(helper in " ".join(sys.orig_argv) for helper in _HELPERS):
        return
    begin(settings).watch_companions()
    # Not at the first `stethos.log`: that may be in a thread, and a child forked during an import never gets its lock.
    import_module("stethos.observe.api")


def _versions() -> dict[str, str]:
    """Versions of the packages that are already imported."""
    wanted = ("numpy", "torchvision", "transformers", "lightning", "flwr", "nvflare", "accelerate", "deepspeed")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in wanted}
    return {name: version for name, version in found.items() if version}


class _ImportFinder(importlib.abc.MetaPathFinder):
    """Waits for the import of a module, lets it happen, and acts after it."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action
        self._is_busy = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name or self._is_busy:
            return None
        self._is_busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


class _Loader(importlib.abc.Loader):
    """A module's own loader, with our word after it."""

    def __init__(self, loader: Any, action: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
