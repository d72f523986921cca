"""Hugging Face `Trainer`: its epochs and evaluations; what it accumulates is among its arguments, which are heard."""

from __future__ import annotations

from typing import Any

from stethos.observe.frameworks.told import Facts, Told

_CALLBACKS = "transformers.trainer_callback", "CallbackHandler"


def _epoch(handler: Any, args: Any, state: Any, *_: Any, **__: Any) -> Facts:
    return {"number": int(state.epoch or 0), "by": "Trainer"}


def _evaluation(*_: Any, **__: Any) -> Facts:
    return {"stage": "evaluate", "by": "Trainer"}


TOLD = (
    Told(*_CALLBACKS, "on_epoch_begin", "begins", "epoch", _epoch),
    Told(*_CALLBACKS, "on_epoch_end", "ends", "epoch"),
    Told("transformers.trainer", "Trainer", "evaluate", "during", "evaluation", _evaluation),
)
