"""Proofs about a captured run, from its directory; what was trained is kept there, and taken up again."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stethos.errors import CaptureError
from stethos.lab.counterfactual import LabWorld
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.own_world import OwnWorld
from stethos.replay.past import Turnout, World, turnouts_of
from stethos.replay.proof import Accusation, Proof, Retraining, prove_by_aggregation, prove_by_training

DIRECTORY = "proofs"


class Progress(Protocol):
    def __call__(self, done: int, total: int, words: str) -> None: ...
    def end(self) -> None: ...


class Prover:
    """Tries accusations against clients of one run."""

    def __init__(
        self, path: Path, *, most_seeds: int = 8, may_train: bool = True, federation: str | None = None,
        **functions: Any,
    ) -> None:  # fmt: skip
        self._path = path
        self._most_seeds = most_seeds
        self._may_train = may_train
        self.bundle = open_bundle(path, federation)
        self._world: World = world_of(self.bundle, **functions)
        self._turnouts: list[Turnout] = turnouts_of(self.bundle)

    def prove(self, accusation: Accusation, say: Callable[[Proof], None], progress: Progress) -> Proof:
        """The last word on an accusation; `say` hears of each stage. CaptureError if it cannot be tried."""
        known = {client for one in self._turnouts for client in one.clients}
        for client in accusation.clients:
            if client not in known:
                raise CaptureError(
                    f"client {client} sent nothing that was captured", hint=f"clients: {', '.join(sorted(known))}"
                )
        proof = prove_by_aggregation(self._world, self._turnouts, accusation)
        say(proof)
        first, last = self._span(accusation)
        if not self._may_train or (proof.verdict == "proved" and first == last):
            return proof
        kept = Retraining(first, last)
        file = self._file(accusation, first, last)
        kept.done.update(_read(file, len(self._world.labels)))
        weights = {name: size for one in self._turnouts for name, size in zip(one.clients, one.samples, strict=True)}
        try:
            made = prove_by_training(
                self._world, weights, accusation, kept, most_seeds=self._most_seeds, tell=progress,
                keep=lambda: _write(file, kept),
            )  # fmt: skip
        finally:
            progress.end()
        if made is None:
            return proof
        say(made)
        return made

    def _span(self, accusation: Accusation) -> tuple[int, int]:
        """The rounds to train again: from the accusation's first, or the earliest that was captured, to the last."""
        rounds = self.bundle.rounds
        return max(accusation.first, rounds[0]), rounds[-1]

    def _file(self, accusation: Accusation, first: int, last: int) -> Path:
        names = "\0".join([*sorted(accusation.clients), "|", *sorted(accusation.others), f"{first}", f"{last}"])
        return self._path / DIRECTORY / f"{hashlib.sha256(names.encode()).hexdigest()[:16]}.npz"


def world_of(
    bundle: Bundle, *, evaluator: Callable[..., Any] | None = None, trainer: Callable[..., Any] | None = None,
    aggregator: Callable[..., Any] | None = None, predictor: Callable[..., Any] | None = None,
    timeout_s: float | None = None,
) -> OwnWorld | LabWorld:  # fmt: skip
    """The lab's own for its runs, else one of the user's functions."""
    if evaluator is not None or predictor is not None:
        return OwnWorld(
            bundle, evaluator=evaluator, trainer=trainer, aggregator=aggregator, predictor=predictor,
            timeout_s=timeout_s,
        )  # fmt: skip
    if isinstance(bundle.settings.get("lab"), dict):
        return LabWorld(bundle)
    raise CaptureError(
        "this is no federation of the lab, and a capture holds no code",
        hint="--evaluator module:function: for a state dict, whether each answer of the test is right",
    )


def _read(file: Path, samples: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """What was trained before; nothing if there is no such file, or it is damaged."""
    try:
        with np.load(file, allow_pickle=False) as found:
            return {
                key: found[key]
                for key in found.files
                if found[key].dtype == np.bool_ and found[key].shape == (samples,)
            }
    except (OSError, ValueError, zipfile.BadZipFile, KeyError, EOFError):
        return {}


def _write(file: Path, kept: Retraining) -> None:
    """Whole or not at all; where nothing can be written, the proof goes on without."""
    try:
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(".part")
        with open(part, "wb") as out:
            np.savez_compressed(out, **kept.done)  # type: ignore[arg-type]
        part.replace(file)
    except OSError:
        return
