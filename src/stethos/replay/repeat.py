"""Repeats a recorded aggregation or a client's recorded training, and says where the two part and why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.errors import CaptureError
from stethos.replay.bundle import Bundle
from stethos.replay.capture import environment_facts, source_of
from stethos.replay.difference import LayerDifference, differences
from stethos.replay.history import ClientUpdate, Past, past_of
from stethos.replay.trainer import Trainer
from stethos.store.literal import literal

if TYPE_CHECKING:
    from stethos.store.run import Run

_ROUNDING = (
    1e-4  # differences below this, relative to a layer's largest weight, may come from another order of additions
)


@dataclass(frozen=True, slots=True)
class Repetition:
    """A piece of work done again: `is_exact` if every bit of the result is the one that was recorded.

    If not: `layers` are those that differ, `step` is the first local step whose loss differs (from 1; None if no
    losses are known, or all agree), and `reasons` the likely causes, the likeliest first.
    """

    what: str
    round: int
    client: str | None
    is_exact: bool
    layers: tuple[LayerDifference, ...]
    step: int | None
    steps: int | None
    reasons: tuple[str, ...]
    note: str
    duration_s: float


def repeat_aggregation(bundle: Bundle, trainer: Trainer, round: int) -> Repetition:
    """Aggregate a round's recorded updates again."""
    began = time.monotonic()
    recorded = bundle.global_state(round, "after")
    sent = [bundle.update(round, client) for client in bundle.clients(round)]
    made, _ = trainer.aggregate(round, bundle.global_state(round), sent, bundle.server_state(round))
    layers = tuple(differences(made, recorded))
    note = str(getattr(trainer, "average", "") or "")
    reasons = tuple(_reasons_of_aggregation(bundle, layers, note)) if layers else ()
    return Repetition(
        f"the aggregation of round {round}", round, None, not layers, layers, None, None, reasons, note,
        time.monotonic() - began,
    )  # fmt: skip


def repeat_training(bundle: Bundle, trainer: Trainer, round: int, client: str, run: Run | None = None) -> Repetition:
    """Train a client again from the recorded global model; `run` has the losses of its steps, if not the capture."""
    began = time.monotonic()
    recorded = bundle.update(round, client)
    past = past_of(bundle)
    made, losses = _trained(trainer, round, client, past)
    layers = tuple(differences(made.state, recorded.state))
    known = recorded.losses or losses_in(run, round, client)
    step = _first_difference(losses, known)
    reasons: tuple[str, ...] = ()
    if layers:
        again, again_losses = _trained(trainer, round, client, past)
        reasons = tuple(_reasons(bundle, trainer, recorded.order, made, again, layers, step))
        if step is None and losses and again_losses:
            step = _first_difference(losses, again_losses)
    return Repetition(
        f"the training of client {client} in round {round}", round, client, not layers, layers, step,
        len(known) if known else len(losses) or None, reasons, "", time.monotonic() - began,
    )  # fmt: skip


def _trained(trainer: Trainer, round: int, client: str, past: Past) -> tuple[ClientUpdate, Sequence[float]]:
    with losses_seen() as seen:
        (made,) = trainer.train(round, [client], past)
    return made, made.losses or seen


@contextmanager
def losses_seen() -> Iterator[list[float]]:
    """The losses that are differentiated meanwhile, one per `backward`."""
    import torch

    seen: list[float] = []
    original = torch.Tensor.backward

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.numel() == 1:
            seen.append(float(self.detach().item()))
        return original(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    torch.Tensor.backward = backward  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        torch.Tensor.backward = original  # type: ignore[method-assign]


def losses_in(run: Run | None, round: int, client: str) -> tuple[float, ...]:
    """The losses of a client's steps as the run's tables have them."""
    if run is None:
        return ()
    where = f"round = {int(round)} AND client = {literal(client)}"
    rows = run.rows(f"SELECT loss FROM steps WHERE {where} ORDER BY t_ns, step").values
    found = [row[0] for row in rows]
    return tuple(float(loss) for loss in found) if found and None not in found else ()


def _first_difference(made: Sequence[float], recorded: Sequence[float]) -> int | None:
    for number, (a, b) in enumerate(zip(made, recorded, strict=False), start=1):
        if a != b and (a == a or b == b):
            return number
    return min(len(made), len(recorded)) + 1 if made and recorded and len(made) != len(recorded) else None


# Why ------------------------------------------------------------------------------------------------


def _reasons(
    bundle: Bundle, trainer: Trainer, order: str | None, made: ClientUpdate, again: ClientUpdate,
    layers: Sequence[LayerDifference], step: int | None,
) -> Iterator[str]:  # fmt: skip
    is_small = max((one.relative for one in layers), default=0.0) < _ROUNDING
    is_random = bool(differences(made.state, again.state))
    if is_random and is_small:
        yield "a nondeterministic kernel: two repetitions differ from each other, by rounding alone"
    elif is_random:
        yield (
            "an unseeded generator: two repetitions differ from each other; torch's, NumPy's and Python's global "
            "generators were set as recorded, so the trainer draws from one of its own"
        )
    yield from environment_changes(bundle.settings)
    yield from code_changes(bundle.settings, getattr(trainer, "entrance", None))
    if order is not None and made.order is not None and order != made.order:
        yield "changed data: the samples come in another order than in the recording"
    if is_random:
        return
    if is_small:
        yield "rounding: repetitions agree, and differ from the recording by an order of additions (threads, processor)"
    elif step in (None, 1):
        where = ", and part from the recording at the first step" if step else ""
        yield f"changed data or code: repetitions agree with each other{where}"
    else:
        yield "changed code, or state that the trainer keeps between rounds: repetitions agree with each other"


def _reasons_of_aggregation(bundle: Bundle, layers: Sequence[LayerDifference], average: str) -> Iterator[str]:
    yield from environment_changes(bundle.settings)
    if max(one.relative if one.of else 1.0 for one in layers) < _ROUNDING:
        yield "rounding: another order of additions" + (f" than {average}" if average else "")
    elif average:
        yield (
            f"the server does something other than {average}, the nearest of the usual averages: give it with "
            "--aggregator module:function"
        )
    else:
        yield "changed code, or server state that was not captured (rnd.server_state)"


def environment_changes(settings: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it was recorded: versions, processor, threads."""
    now = environment_facts()
    for name, words in (
        ("torch", "another torch version"), ("numpy", "another NumPy version"), ("machine", "another kind of machine"),
        ("processor", "another processor"), ("cuda", "another device"), ("stethos", "another version of Stethos"),
    ):  # fmt: skip
        was = settings.get(name)
        if was is not None and now.get(name) is not None and was != now[name]:
            yield f"{words}: recorded with {was}, here it is {now[name]}"
    threads = settings.get("threads")
    if isinstance(threads, int) and isinstance(now.get("threads"), int) and threads != now["threads"]:
        yield f"thread count: recorded with {threads} threads, this process started with {now['threads']}"


def code_changes(settings: Mapping[str, Any], trainer: Any) -> Iterator[str]:
    """Whether the trainer's file is the one that was registered."""
    known = settings.get("trainer")
    if trainer is None or not isinstance(known, Mapping) or not known.get("sha256"):
        return
    here = source_of(trainer)
    if here["sha256"] != known["sha256"]:
        yield f"changed code: {here['file']} is not as it was when the run began"


def check_round(bundle: Bundle, round: int) -> None:
    """CaptureError unless the round was captured."""
    bundle.manifest(round)
    if not bundle.kept(round):
        mode = bundle.settings.get("mode")
        raise CaptureError(
            f"round {round} has no updates to repeat: capture={mode!r} keeps none", hint="use capture='all'"
        )
