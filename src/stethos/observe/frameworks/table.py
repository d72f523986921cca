"""All frameworks that tell something."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from stethos.observe.frameworks import accelerate, lightning, ray_train, transformers
from stethos.observe.frameworks.elastic import attempt_of
from stethos.observe.frameworks.told import FrameworkWatch
from stethos.observe.session import Session

TOLD = (*lightning.TOLD, *transformers.TOLD, *accelerate.TOLD, *ray_train.TOLD)


def watch_frameworks(
    session: Session, after_import: Callable[[str, Callable[[ModuleType], None]], None]
) -> FrameworkWatch:
    """Hear what frameworks tell, from their import on."""
    watch = FrameworkWatch(session)
    watch.install(after_import, TOLD)
    facts = attempt_of()
    if facts:
        session.note_config("framework", facts)
    return watch
