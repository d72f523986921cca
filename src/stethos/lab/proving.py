"""Proofs about a captured run, from its directory; what was trained is kept there, and taken up again."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stethos.errors import CaptureError
from stethos.lab.counterfactual import LabWorld
from stethos.replay.bundle import Bundle, open_bundle
from stethos.replay.capture import environment_facts, source_of
from stethos.replay.own_world import OwnWorld
from stethos.replay.past import Turnout, turnouts_of
from stethos.replay.proof import Accusation, Proof, Retraining, prove_by_aggregation, prove_by_training

DIRECTORY = "proofs"


class Progress(Protocol):
    """Is told how far a proof has come, and when it is over."""

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
        self._world = world_of(self.bundle, **functions)
        self._turnouts: list[Turnout] = turnouts_of(self.bundle, is_needed=False)
        sources = [source_of(one) for one in functions.values() if callable(one)]
        self._sources = [str(environment_facts().get("torch")), *(str(one["sha256"]) for one in sources)]

    def prove(self, accusation: Accusation, say: Callable[[Proof], None], progress: Progress) -> Proof:
        """The last word on an accusation; `say` hears of each stage. CaptureError if it cannot be tried.

        Where updates were not captured, nothing is aggregated again; where nothing can be trained, that is all.
        """
        weights = self._weights()
        for client in accusation.clients:
            if client not in weights:
                raise CaptureError(
                    f"client {client} sent nothing that was captured", hint=f"clients: {', '.join(sorted(weights))}"
                )
        first, last = self._span(accusation)
        can_train = self._may_train and self._world.can_train and first <= last
        proof = None
        if self._turnouts or not can_train:
            turnouts = self._turnouts or turnouts_of(self.bundle)
            proof = prove_by_aggregation(self._world, turnouts, accusation)
            say(proof)
        if not can_train or (proof is not None and proof.verdict == "proved" and first == last):
            assert proof is not None
            return proof
        kept = Retraining(first, last)
        file = self._file(accusation, first, last)
        kept.done.update(_read(file, len(self._world.labels)))
        try:
            made = prove_by_training(
                self._world, weights, accusation, kept, most_seeds=self._most_seeds, tell=progress,
                keep=lambda: _write(file, kept),
            )  # fmt: skip
        finally:
            progress.end()
        assert made is not None
        say(made)
        return made

    def _weights(self) -> dict[str, float]:
        """All clients that sent something in a captured round, and their last weight."""
        turns = [
            (client, self.bundle.turn(number, client))
            for number in self.bundle.rounds
            for client in self.bundle.clients(number)
        ]
        return {client: float(turn.get("weight") or turn.get("samples") or 1) for client, turn in turns}

    def _span(self, accusation: Accusation) -> tuple[int, int]:
        """The rounds to train again: from the accusation's first, or the earliest for which the models that a training
        begins with were captured, to the last."""
        rounds = self.bundle.rounds
        earliest = rounds[0] if rounds[0] <= 1 else rounds[0] + self._world.reach
        return max(accusation.first, earliest), rounds[-1]

    def notes(self, accusation: Accusation) -> Iterator[str]:
        """What limits a proof of this accusation, in words: rounds that were dropped, corrections that were made."""
        rounds = self.bundle.rounds
        if rounds and accusation.first < rounds[0]:
            yield (
                f"the accusation begins with round {accusation.first}, the capture with round {rounds[0]}: what was "
                "done before stays in the model"
            )
        for client in accusation.clients:
            treated = [number for number in rounds if self.bundle.remedy(number).of(client) != (1.0, 1.0)]
            if treated:
                yield (
                    f"corrections dealt with client {client} in {len(treated)} of {len(rounds)} rounds, and do so "
                    "again: this is about the harm that was left (see `stethos actions`)"
                )

    def _file(self, accusation: Accusation, first: int, last: int) -> Path:
        """Where trainings are kept; others if the functions or torch are not the same any more."""
        names = "\0".join(
            [*sorted(accusation.clients), "|", *sorted(accusation.others), f"{first}", f"{last}", *self._sources]
        )
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
