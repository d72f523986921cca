"""Faults between training and sending, from what optimizers did and what clients sent."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.standing_out import FEWEST, margins

Array = npt.NDArray[np.float64]
_FAITHFUL = 0.05
_FEWEST_ROUNDS = 3
_FALLS = 0.05
_LEAST_OF_A_BATCH = 0.5  # samples that a client says it has; fewer are a weight
_TIMES = 2.0  # powers of two: a quarter of the steps, or four times as many
_OTHERWISE = 1.3  # how far it stands out whose loss is computed by other operations than the others'


def update_margins(inside: InsideEvidence) -> dict[str, Array]:
    """By kind of fault, how far each client stands out."""
    if not inside.rounds:  # sketches of data alone
        return {"ascent": np.zeros(len(inside.clients))}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return _update_margins(inside)


def _update_margins(inside: InsideEvidence) -> dict[str, Array]:
    found: dict[str, Array] = {}
    sent, along = inside.matrix("sent_sent"), inside.matrix("way_sent")
    is_lost = np.isfinite(sent).mean(1) < 0.5 * np.isfinite(inside.matrix("steps")).mean(1)  # to NaN, at most of them
    sent, along = np.where(is_lost[:, None], np.nan, sent), np.where(is_lost[:, None], np.nan, along)
    found["nan"] = _odd(inside)
    found["wrong-lr"] = _rates(inside.matrix("lr"))
    found["stale"] = _begins(inside.matrix("begin"))
    found["uncleared"] = _uncleared(inside.matrix("uncleared"), inside.matrix("steps"))
    found["untrained"] = _untrained(inside.matrix("trained"))
    found["ascent"] = np.maximum(_ascent(inside), _negative(inside.matrix("negative")))
    found["turned"] = _turned(inside)
    found["between"] = _between(inside)
    found["otherwise"] = np.where(unlike_facts(inside, "graph"), _OTHERWISE, 0.0)
    found["early"] = _early(inside)
    if not np.isfinite(sent).any():
        return found
    nothing = _nothing(sent, is_sparse=float(np.isfinite(inside.matrix("kept")).mean()) > 0.4)
    ratio = _scaled(inside, along / np.where(sent > 0, sent, np.nan))
    if np.nanmedian(np.abs(ratio - 1)) < _FAITHFUL:
        begins_elsewhere = np.nan_to_num(inside.matrix("begin")) > _FAITHFUL  # a late client, see `_begins`
        found |= _faithful(np.where(begins_elsewhere, np.nan, ratio), sent, along, inside.matrix("way"))
    else:
        found |= _noisy(sent, along, inside.matrix("way"))
    found["free-rider"] = np.maximum(found["free-rider"], nothing)
    found["partly"] = np.maximum(_partly(sent, along), _unlike_sent(inside, ratio, along / np.sqrt(sent)))
    found["training"] = _length(inside)
    return found


def _scaled(inside: InsideEvidence, ratio: Array) -> Array:
    """What was done per what was sent, 1 where clients send what they did.

    Where all send a multiple of it, or their mean step, relative to that.
    """
    middle = np.nanmedian(ratio)
    if abs(middle - 1) < _FAITHFUL or not middle > 0:
        return ratio
    by_step = ratio / inside.matrix("steps")
    plain, steps = ratio / middle, by_step / np.nanmedian(by_step)
    best = plain if np.nanmean(np.abs(plain - 1)) <= np.nanmean(np.abs(steps - 1)) else steps
    return best if np.nanquantile(np.abs(best - 1), 0.65) < 0.01 else ratio


def _odd(inside: InsideEvidence) -> Array:
    """NaN or infinite elements sent, though training did not make them."""
    sent, way = np.nan_to_num(inside.matrix("odd_sent")), np.nan_to_num(inside.matrix("odd_way"))
    is_of_all = (sent > 0).mean(1, keepdims=True) > 0.5  # the global model has them
    own = ((sent > 0) & (way == 0) & ~is_of_all).any(0)
    return np.where(own & (own.mean() <= 0.5), 9.0, 0.0)


def _rates(rates: Array) -> Array:
    """A learning rate that is not the others', where those agree."""
    middle = np.nanmedian(rates, axis=1, keepdims=True)
    apart = np.abs(np.log10(rates / middle))
    agree = np.nanmean(np.where(np.isfinite(apart), apart < 1e-6, np.nan), axis=1, keepdims=True) > 0.6
    strange = np.nanmax(np.where(agree, apart, 0.0), axis=0)
    return np.where(np.nan_to_num(strange) > 0.3, np.nan_to_num(strange) / 0.3, 0.0)


def _begins(begin: Array) -> Array:
    """Training that began elsewhere than at the global model, where the others' begins there."""
    if not np.isfinite(begin).any() or np.nanmedian(begin) > 0.02:
        return np.zeros(begin.shape[1])
    is_far = np.nan_to_num(begin) > 0.05
    seen = np.isfinite(begin).sum(0)
    often = is_far.sum(0) >= np.maximum(2, 0.25 * seen)
    is_usual = is_far.any(0).mean() > 0.4  # then it is how this federation works
    return np.where(often & ~is_usual, 5.0, 0.0)


def _nothing(sent: Array, *, is_sparse: bool) -> Array:
    """Updates of nothing, though the optimizer moved; where all send a few elements, it may have moved others."""
    is_nothing = sent < 1e-8
    often = is_nothing.sum(0) >= np.maximum(1, (0.6 if is_sparse else 0.25) * np.isfinite(sent).sum(0))
    return np.where(often & (often.mean() <= 0.4), 9.0, 0.0)


def _faithful(ratio: Array, sent: Array, along: Array, way: Array) -> dict[str, Array]:
    """Clients send what they did, whole or in part: who does not, in its worst round, and how.

    Who is clipped sends less than it did, and still no less than anybody who is not.
    """
    strange = np.where(ratio > 0, np.abs(np.log10(np.maximum(ratio, 1e-6))), 3.0)
    size = way * np.sqrt(sent)
    largest = np.nanmax(np.where(np.abs(ratio - 1) < 0.01, size, np.nan), axis=1, keepdims=True)
    is_clipped = (ratio > 1) & (along / np.sqrt(sent) > 0.99) & (size >= 0.99 * largest)
    strange = np.where(np.isfinite(ratio), np.where(is_clipped, 0.0, strange), np.nan)
    worst = np.nanmax(strange, axis=0)
    is_odd = margins(worst, 0.1, 5.0, 0.01)
    at = np.nanargmax(np.where(np.isfinite(strange), strange, -1.0), axis=0)
    places = np.arange(strange.shape[1])
    cosine = (along / np.sqrt(sent))[at, places]
    kinds = {name: np.zeros(len(is_odd)) for name in ("sign-flip", "scaling", "update-noise", "free-rider")}
    for place in places:
        if is_odd[place] >= 1:
            kind = (
                "sign-flip" if cosine[place] < -0.5 else "scaling" if cosine[place] > 0.97
                else "free-rider" if abs(cosine[place]) < 0.15 and sent[at[place], place] < 4 else "update-noise"
            )  # fmt: skip
            kinds[kind][place] = is_odd[place]
    return kinds


def _noisy(sent: Array, along: Array, way: Array) -> dict[str, Array]:
    """Noise is added to what clients send: over the rounds, how much of what they did is in it, and how much else."""
    rounds = np.isfinite(along).sum(0)
    mean = np.nanmean(along, axis=0)
    error = np.nanstd(along, axis=0) / np.sqrt(np.maximum(rounds - 1, 1)) + 1e-3
    is_seen = rounds >= _FEWEST_ROUNDS
    turned = np.where(is_seen & (mean < -0.1), -mean / error / 4.0, 0.0)
    usual = float(np.nanmedian(mean))
    cosine = np.nanmean(along / np.sqrt(sent), axis=0)  # of who is clipped it stays
    is_else = (mean < 0.2 * usual) & (mean >= -0.1) & (cosine < 0.4 * np.nanmedian(cosine))
    missing = np.where(is_seen & is_else, (usual - mean) / error / 5.0, 0.0)
    most = 1.1 * max(1.0, usual)
    large = np.where(is_seen & (mean > most), (mean - most) / error / 4.0, 0.0)
    rest = 0.5 * np.log10(np.maximum(sent - along**2, 1e-9)) + np.log10(way)  # the noise itself, the same for all
    rest_error = np.nanstd(rest, axis=0) / np.sqrt(np.maximum(rounds - 1, 1))
    noise = np.where(is_seen, margins(np.nanmean(rest, axis=0), 0.08, 5.0, 0.01, rest_error), 0.0)
    few = [np.where((one >= 1).mean() <= 0.4, one, 0.0) for one in (turned, missing, large)]
    return {"sign-flip": few[0], "free-rider": few[1], "scaling": few[2], "update-noise": noise}


def _uncleared(left: Array, steps: Array) -> Array:
    """Gradients of the step before that were still there, where the others clear theirs."""
    seen = (np.nan_to_num(steps) > 1).any(0)
    often = np.nan_to_num(left).sum(0) > 0
    return np.where(often & (often.sum() <= 0.3 * seen.sum()), 5.0, 0.0)


def _partly(sent: Array, along: Array) -> Array:
    """A part of what the optimizer did, where the others send the whole."""
    is_part = (np.abs(along - sent) < 1e-3 * np.abs(along)) & (sent < 0.99)
    often = is_part.sum(0) >= np.maximum(2, 0.5 * np.isfinite(sent).sum(0))
    is_whole = np.nanquantile(np.abs(sent - 1), 0.6) < 1e-3
    return np.where(often & is_whole, 5.0, 0.0)


def _unlike_sent(inside: InsideEvidence, ratio: Array, cosine: Array) -> Array:
    """Layers of which something else was sent than the optimizer did, where the others send all as it is."""
    sees = np.isfinite(ratio)
    share = np.where(sees, np.nan_to_num(inside.matrix("unlike")), np.nan)
    begins_elsewhere = np.nan_to_num(inside.matrix("begin")) > _FAITHFUL
    is_clipped = (ratio > 1) & (cosine > 0.99)
    is_other = (share > 0) & ~begins_elsewhere & ~is_clipped
    if np.nanmean(inside.matrix("kept") < 0.999) > 0.1:  # they send the largest elements only
        return np.zeros(share.shape[1])
    turns = sees.sum(0)
    often = np.where(turns >= 2, is_other.sum(0) / np.maximum(turns, 1), np.nan)
    return margins(np.where(is_other.sum(0) == 1, 0.0, often), 0.3, 5.0, 0.05)


def _untrained(trained: Array) -> Array:
    """Fewer weights trained than at nearly all others, where those train equally many."""
    if not np.isfinite(trained).any():
        return np.zeros(trained.shape[1])
    own = np.nanmax(trained, axis=0)
    usual = np.nanmedian(own)
    is_fewer = own < 0.99 * usual
    agree = np.nanmean(np.where(np.isfinite(own), own == usual, np.nan))
    return np.where(is_fewer & (agree >= 0.7), 5.0, 0.0)


def _negative(negative: Array) -> Array:
    """A loss below zero, of a kind that cannot be, where the others' is above."""
    often = np.nan_to_num(negative).sum(0) > 0
    return np.where(often & (often.mean() <= 0.4), 5.0, 0.0)


def _ascent(inside: InsideEvidence) -> Array:
    """How much the loss on its own samples rises within its turns, as a logarithm, where the others' does not."""
    last, first = -inside.matrix("log_p_last"), -inside.matrix("log_p")
    residual = np.full(first.shape, np.nan)
    for column, client in enumerate(inside.clients):
        for row, number in enumerate(inside.rounds):
            one = inside.turns.get(client, {}).get(number, {}).get("residual")
            if isinstance(one, list) and one and isinstance(one[0], int | float):
                residual[row, column] = one[0]
    first = np.where(np.isfinite(first), first, residual)
    rise = np.log((last + 0.02) / (first + 0.02))
    rounds = np.isfinite(rise).sum(0)
    mean = np.where(rounds >= _FEWEST_ROUNDS, np.nanmean(np.clip(rise, -3, 3), axis=0), np.nan)
    error = np.nanstd(rise, axis=0) / np.sqrt(np.maximum(rounds - 1, 1))
    if not np.nanmedian(mean) < _FALLS:
        return np.zeros(len(mean))
    surely = np.where(mean > 0, mean / (error + 0.01) / 3.0, 0.0)
    return np.nan_to_num(np.minimum(margins(mean, 0.2, 3.5, 0.03, error, gap=1.4), surely))


def _length(inside: InsideEvidence) -> Array:
    """How far a step went on average for its learning rate, where its loss or optimizer is not the others', too.

    Alone it must be far more: a site with other data has longer steps until the model has learnt them.
    """
    far = np.log10(inside.matrix("way") / inside.matrix("steps") / inside.matrix("lr"))
    far = np.where(np.isfinite(far), far, np.nan)
    rounds = np.isfinite(far).sum(0)
    far = np.nanmean(far - np.nanmedian(far, axis=1, keepdims=True), axis=0)
    far = np.where(rounds >= _FEWEST_ROUNDS, far, np.nan)  # of training that diverges at once little is left to see
    alone, otherwise = margins(far, 2.5, 5.0, 0.05), margins(np.abs(far), 0.3, 3.0, 0.05, gap=1.2)
    return np.where(trains_otherwise(inside), np.maximum(alone, otherwise), alone)


def trains_otherwise(inside: InsideEvidence) -> npt.NDArray[np.bool_]:
    """Clients whose loss or optimizer is not the others'."""
    return unlike_facts(inside, "loss") | unlike_facts(inside, "setup") | unlike_facts(inside, "graph")


def _turned(inside: InsideEvidence) -> Array:
    """Gradients that point elsewhere when the optimizer steps than when they were computed, where the others' do not.

    Clipping and scaling leave their direction; corrections that all clients make turn all of them.
    """
    cosine = np.where(_has_steps(inside), np.nan_to_num(inside.matrix("turned"), nan=1.0), np.nan)
    return margins(np.nanmedian(1 - cosine, axis=0), 1.0, 4.0, 0.1)


def _between(inside: InsideEvidence) -> Array:
    """Weights that are changed between steps, in lengths of a step, where the others' are not."""
    moved = np.where(_has_steps(inside), np.nan_to_num(inside.matrix("between")), np.nan)
    return margins(np.minimum(np.nanmedian(moved, axis=0), 2.0), 0.1, 4.0, 0.02)


def _has_steps(inside: InsideEvidence) -> npt.NDArray[np.bool_]:
    return np.asarray(inside.matrix("steps") > 1)


def _early(inside: InsideEvidence) -> Array:
    """How many times fewer, or more, steps and passes over its samples a client makes than the others."""
    made, passes = steps_and_passes(inside)
    fewer, more = (
        np.minimum(margins(way * made, _TIMES, 4.0, 0.15), margins(way * passes, _TIMES, 4.0, 0.15))
        for way in (-1.0, 1.0)
    )
    return np.maximum(fewer, more)


def steps_and_passes(inside: InsideEvidence) -> tuple[Array, Array]:
    """Of each client, as powers of two and means over rounds: its steps, and its passes over its samples.

    Both must be unusual: some federations agree on a number of steps, others on passes. Passes go by the samples that
    it says it has, if those fill a batch: windows of a series are seen anew in each round.
    """
    steps, batch = inside.matrix("steps"), np.nanmedian(inside.matrix("batch"), axis=0)
    said, seen = np.nanmax(inside.matrix("samples"), axis=0), np.nansum(inside.matrix("new"), axis=0)
    is_count = np.nanmedian(said / batch) >= _LEAST_OF_A_BATCH
    samples = said if is_count else np.fmax(said, np.where(seen > 0, seen, np.nan))
    made, passes = (np.nanmean(np.log2(one), axis=0) for one in (steps, steps * batch / samples))
    return made, passes


def unlike_facts(inside: InsideEvidence, name: str) -> npt.NDArray[np.bool_]:
    """Clients in which a fact is not what it is in at least three quarters of them.

    A graph of operations is compared with those on the same kind of device.
    """
    beside = "device" if name == "graph" else None
    told = [_first_told(inside, client, name) for client in inside.clients]
    groups = [None if beside is None else _first_told(inside, client, beside) for client in inside.clients]
    found = np.zeros(len(told), bool)
    for group in set(groups):
        places = [place for place, one in enumerate(told) if one is not None and groups[place] == group]
        known = [told[place] for place in places]
        usual = max(set(known), key=known.count, default=None)
        if len(known) >= FEWEST and known.count(usual) >= 0.75 * len(known):
            found[[place for place in places if told[place] != usual]] = True
    return found


def _first_told(inside: InsideEvidence, client: str, name: str) -> str | int | None:
    turns = inside.turns.get(client, {})
    told = next((turns[number][name] for number in sorted(turns) if name in turns[number]), None)
    return told if isinstance(told, str | int) else None
