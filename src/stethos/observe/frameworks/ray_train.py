"""Ray Train: the settings of a worker's loop; what it reports is heard with the loggers."""

from __future__ import annotations

from typing import Any

from stethos.observe.frameworks.told import Facts, Told


def _report(metrics: Any = None, *_: Any, checkpoint: Any = None, **__: Any) -> Facts:
    return {"has_checkpoint": checkpoint is not None, "by": "Ray Train"}


TOLD = (Told("ray.train", "", "report", "during", "report", _report),)
