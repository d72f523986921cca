"""Provenance of an answer: which clients' updates made the global model say this about an input.

For each of the last captured rounds the round is aggregated again without each
client, which is exact, and the input is shown to the result: how much less
would the model have believed in the class? Beside it stands how much each
client's own model believes in it. Both are counted in deviations over the clients and added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from stethos.errors import CaptureError, UsageError
from stethos.replay.history import RecordedRound, State
from stethos.replay.trainer import Trainer, aggregated

if TYPE_CHECKING:
    from torch import Tensor

ROUNDS = 10
Array = npt.NDArray[np.float64]


class AnsweringTrainer(Trainer, Protocol):
    """A trainer whose models can be asked about an input."""

    def scores(self, state: State, x: Tensor) -> Tensor:
        """A row per input, a column per class, before the softmax."""


@dataclass(frozen=True, slots=True)
class Share:
    """A client's part in an answer; `score` ranks clients.

    `effect` is what its updates added to the log-odds of the class, over the
    rounds; `belief` the probability that its own models give to it, as a geometric mean; `without` is the
    probability and `answer` the answer of the last round's model without it.
    """

    client: str
    score: float
    effect: float
    belief: float
    without: float
    answer: int


@dataclass(frozen=True, slots=True)
class RoundEffect:
    """A client's part in one round: see `Share`."""

    client: str
    effect: float
    belief: float
    without: float
    answer: int


@dataclass(frozen=True, slots=True)
class Provenance:
    """The model's answer to an input, and who made it say `output`; the most responsible client first."""

    output: int
    answer: int
    probability: float
    rounds: tuple[int, ...]
    shares: tuple[Share, ...]


def provenance_of(
    trainer: AnsweringTrainer, recorded: Sequence[RecordedRound], x: Tensor, output: int | None = None,
    run_rounds: Callable[[Sequence[int], int], Sequence[Sequence[RoundEffect]]] | None = None,
) -> Provenance:  # fmt: skip
    """Who is responsible for the answer to one input (`x` has one row); by default for the answer it gets.

    `run_rounds` does the work of `effects_in` elsewhere, for rounds by number and a class.
    """
    import torch

    rounds = [one for one in recorded if one.is_sound][-ROUNDS:]
    if not rounds:
        raise CaptureError("no captured round began with a finite model", hint="see `stethos diagnose`")
    clients = list(dict.fromkeys(client for one in rounds for client in one.clients))
    final = trainer.scores(aggregated(trainer, rounds[-1]), x)[0]
    if not bool(torch.isfinite(final).all()):
        raise CaptureError(
            f"the global model of round {rounds[-1].number} answers {float(final[~torch.isfinite(final)][0])}: "
            "its weights are not finite",
            hint="`stethos diagnose` says whose update broke it",
        )
    answer = int(final.argmax())
    wanted = answer if output is None else output
    if not 0 <= wanted < len(final):
        raise UsageError(f"--output {wanted}", hint=f"the classes are 0 to {len(final) - 1}")
    effect = np.zeros(len(clients))
    belief = np.zeros(len(clients))
    turns = np.zeros(len(clients))
    last: dict[str, tuple[float, int]] = {}
    for made in (
        run_rounds([one.number for one in rounds], wanted)
        if run_rounds
        else (effects_in(trainer, one, x, wanted) for one in rounds)
    ):
        last = {}
        for one in made:
            place = clients.index(one.client)
            effect[place] += one.effect
            belief[place] += one.belief
            turns[place] += 1
            last[one.client] = one.without, one.answer
    with np.errstate(all="ignore"):
        mean_belief = np.nan_to_num(belief / np.maximum(turns, 1), nan=-50.0, neginf=-50.0)
        effect = np.nan_to_num(effect, nan=0.0, posinf=50.0, neginf=-50.0)
        score = _deviations(effect) + _deviations(mean_belief)
    chance = float(torch.softmax(final.double(), 0)[wanted])
    shares = [
        Share(
            client, float(score[place]), float(effect[place]), float(np.exp(mean_belief[place])),
            *last.get(client, (chance, answer)),
        )
        for place, client in enumerate(clients)
    ]  # fmt: skip
    shares.sort(key=lambda share: -share.score)
    return Provenance(wanted, answer, chance, tuple(one.number for one in rounds), tuple(shares))


def effects_in(trainer: AnsweringTrainer, one: RecordedRound, x: Tensor, output: int) -> list[RoundEffect]:
    """What each client of a round added to the model's belief in a class."""
    import torch

    whole = log_odds(trainer.scores(aggregated(trainer, one), x), output)
    found = []
    for update in one.updates:
        without = trainer.scores(aggregated(trainer, one, frozenset({update.client})), x)
        own = torch.log_softmax(trainer.scores(update.state, x)[0].double(), 0)[output]
        probability = float(torch.softmax(without[0].double(), 0)[output])
        effect = whole - log_odds(without, output)
        found.append(RoundEffect(update.client, effect, float(own), probability, int(without[0].argmax())))
    return found


def log_odds(scores: Tensor, output: int) -> float:
    """Of a class against all others together."""
    import torch

    row = scores[0].double()
    others = torch.cat([row[:output], row[output + 1 :]])
    return float(row[output] - torch.logsumexp(others, 0))


def _deviations(values: Array) -> Array:
    spread = float(values.std())
    return np.asarray((values - float(np.median(values))) / spread if spread > 0 else np.zeros_like(values))
