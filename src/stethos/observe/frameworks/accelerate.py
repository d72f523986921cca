"""Accelerate: what it accumulates, and in which precision it computes."""

from __future__ import annotations

from typing import Any

from stethos.observe.frameworks.told import Facts, Told


def _accelerator(accelerator: Any, *_: Any, **__: Any) -> Facts:
    return {
        "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
        "mixed_precision": str(accelerator.mixed_precision),
    }


TOLD = (Told("accelerate.accelerator", "Accelerator", "__init__", "sets", "", _accelerator),)
