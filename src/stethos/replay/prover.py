"""Proofs about a captured run, from its directory; what was trained is kept there, and taken up again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from stethos.errors import CaptureError
from stethos.record.place import RunPlace
from stethos.replay.arm import ArmRunner
from stethos.replay.bundle import Bundle
from stethos.replay.history import RecordedRound, recorded_rounds
from stethos.replay.kept import kept_file, read_kept, sources_of, write_kept
from stethos.replay.proof import Accusation, Proof, Retraining, prove_by_aggregation, prove_by_training
from stethos.replay.trainer import Trainer


class ProofProgress(Protocol):
    """Is told how far a proof has come, and when it is over."""

    def __call__(self, done: int, total: int, words: str) -> None: ...
    def end(self) -> None: ...


class Prover:
    """Tries accusations against clients of one run."""

    def __init__(
        self, path: Path, bundle: Bundle, trainer: Trainer, *, most_seeds: int = 8, may_train: bool = True,
        functions: Iterable[Callable[..., Any]] = (), run_arms: ArmRunner | None = None,
    ) -> None:  # fmt: skip
        """`functions` are those of the user's own that the trainer calls: with others, what was trained is not used.

        `run_arms` trains elsewhere, several at once.
        """
        self._run_arms = run_arms
        self._path = path
        self._is_ours = RunPlace(path).is_ours()  # what a stranger says was trained proves nothing
        self._most_seeds = most_seeds
        self._may_train = may_train
        self.bundle = bundle
        self._trainer = trainer
        self._recorded: list[RecordedRound] = recorded_rounds(bundle, is_needed=False)
        self._sources = sources_of(functions)

    def prove(self, accusation: Accusation, say: Callable[[Proof], None], progress: ProofProgress) -> Proof:
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
        can_train = self._may_train and self._trainer.can_train and first <= last
        tested = self._trainer.evaluate(self.bundle.global_state(self.bundle.rounds[-1]))
        labels, samples = tested.labels, 0 if tested.right is None else len(tested.right)
        proof = None
        if self._recorded or not can_train:
            recorded = self._recorded or recorded_rounds(self.bundle)
            proof = prove_by_aggregation(self._trainer, recorded, accusation, labels)
            say(proof)
        if not can_train or (proof is not None and proof.verdict == "proved" and first == last):
            assert proof is not None
            return proof
        kept = Retraining(first, last)
        file = self._file(accusation, first, last)
        if self._is_ours:
            kept.done.update(read_kept(file, samples))
        try:
            proof = prove_by_training(
                self.bundle, self._trainer, accusation, kept, weights=weights, labels=labels,
                most_seeds=self._most_seeds, tell=progress, keep=lambda: self._keep(file, kept),
                run_arms=self._run_arms,
            )  # fmt: skip
        finally:
            progress.end()
        say(proof)
        return proof

    def _keep(self, file: Path, kept: Retraining) -> None:
        if self._is_ours:
            write_kept(file, kept.done)

    def _weights(self) -> dict[str, float]:
        """All clients that sent something in a captured round, and their last weight."""
        turns = [
            (client, self.bundle.turn(number, client))
            for number in self.bundle.rounds
            for client in self.bundle.clients(number)
        ]
        return {client: float(turn.get("samples") or 1) for client, turn in turns}

    def _span(self, accusation: Accusation) -> tuple[int, int]:
        """The rounds to train again: from the accusation's first, or the earliest for which the models that a training
        begins with were captured, to the last."""
        rounds = self.bundle.rounds
        earliest = rounds[0] if rounds[0] <= 1 else rounds[0] + self._trainer.reach
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
            treated = [number for number in rounds if self.bundle.corrections(number).of(client) != (1.0, 1.0)]
            if treated:
                yield (
                    f"corrections dealt with client {client} in {len(treated)} of {len(rounds)} rounds, and do so "
                    "again: this is about the harm that was left (see `stethos actions`)"
                )

    def _file(self, accusation: Accusation, first: int, last: int) -> Path:
        """Where trainings are kept; others if the functions or torch are not the same any more."""
        clients, others = sorted(accusation.clients), sorted(accusation.others)
        return kept_file(self._path, *clients, "|", *others, f"{first}", f"{last}", *self._sources)
