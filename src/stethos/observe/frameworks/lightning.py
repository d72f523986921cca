"""Lightning: its epochs, as it does not read loaders to their end, its evaluations, and what it accumulates."""

from __future__ import annotations

from typing import Any

from stethos.observe.frameworks.told import Facts, Told

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _epoch(loop: Any) -> Facts:
    return {"number": int(loop.epoch_progress.current.processed), "by": "Lightning"}


def _evaluation(loop: Any) -> Facts:
    stage = "sanity_check" if loop.trainer.sanity_checking else getattr(loop._stage, "value", loop._stage)
    return {"stage": str(stage), "by": "Lightning"}


def _trainer(trainer: Any, *_: Any, **__: Any) -> Facts:
    names = ("accumulate_grad_batches", "max_epochs", "gradient_clip_val", "precision")
    return {name: getattr(trainer, name) for name in names if getattr(trainer, name, None) is not None}


TOLD = tuple(
    one
    for package in _PACKAGES
    for one in (
        Told(f"{package}.loops.fit_loop", "_FitLoop", "advance", "during", "epoch", _epoch),
        Told(f"{package}.loops.evaluation_loop", "_EvaluationLoop", "run", "during", "evaluation", _evaluation),
        Told(f"{package}.trainer.trainer", "Trainer", "__init__", "sets", "", _trainer),
    )
)
