"""Clients that train on the same few samples again and again: what repeats in batches, and what is not there at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch, fewest_samples
from stethos.diagnose.federated.inside_data import FEWEST_SAMPLES
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.standing_out import margins

Array = npt.NDArray[np.float64]
_MOST_COUNTED = 400  # samples of a client that are told apart
_MANY_ALIKE = 0.4  # of a batch repeats the rest, in some rounds
_FEW = 20
_FEW_SAMPLES = 0.3  # of what the median client has


def duplicate_margins(inside: InsideEvidence) -> Array:
    """How far each client stands out by either; 1 and more means that it repeats its samples."""
    return np.maximum(_in_batches(inside), margins(fewer_than_said(inside), 1.0, 4.0, 0.1))


def distinct_in_batches(inside: InsideEvidence) -> Array:
    """The share of a batch that repeats no other sample of it beyond chance, rounds x clients."""
    return np.minimum(inside.matrix("distinct") + np.nan_to_num(inside.matrix("by_chance")), 1.0)


def has_words(inside: InsideEvidence) -> npt.NDArray[np.bool_]:
    """Whose samples are of tokens: lines may come often, where rows of numbers hardly do."""
    return np.array([any(one.kind == "tokens" for one in inside.data.get(client, ())) for client in inside.clients])


def has_few(inside: InsideEvidence, whole: Sequence[Sketch | None]) -> npt.NDArray[np.bool_]:
    """Who has hardly any samples, says so, and does not repeat them: of those only how they train and send is known."""
    count = np.array([one.n if one is not None else np.inf for one in whole])
    said = np.nan_to_num(inside.matrix("samples")).max(0, initial=0.0)
    used = np.nan_to_num(inside.matrix("rows")).max(0, initial=0.0)
    few = fewest_samples(whole, _FEW)
    return np.asarray((count < few) & (np.where(said > 0, said, used) < few))


def _in_batches(inside: InsideEvidence) -> Array:
    """How much of its batches repeats other samples of the batch, beyond chance.

    Texts may have lines that come often, so it must have far fewer samples, too, or repeat far more in some rounds than
    in others, as where inputs are lost at times.
    """
    rows, distinct = inside.matrix("rows"), distinct_in_batches(inside)
    if not np.isfinite(distinct).any():
        return np.zeros(len(inside.clients))
    seen = np.nansum(rows, axis=0) >= FEWEST_SAMPLES
    known = np.isfinite(distinct)
    share = 1 - _mean_by_rows(distinct, rows)
    often = np.array([_at_times(1 - distinct[known[:, place], place]) for place in range(len(inside.clients))])
    count = np.array([sum(one.n for one in inside.data.get(client, ())) for client in inside.clients])
    is_few = count <= _FEW_SAMPLES * np.median(count)
    few = margins(np.where(seen, share, np.nan), 0.3, 4.0, 0.03)
    return np.maximum(np.where(is_few, few, 0.0), margins(np.where(seen, often, np.nan), _MANY_ALIKE, 4.0, 0.03))


def _mean_by_rows(values: Array, rows: Array) -> Array:
    known = np.where(np.isfinite(values), rows, 0.0)
    return np.asarray(np.nansum(values * known, axis=0) / np.maximum(np.nansum(known, axis=0), 1))


def _at_times(shares: Array) -> float:
    """How much larger a share is in the third of the rounds in which it is largest than where it is smallest."""
    third = max(2, len(shares) // 3)
    if len(shares) < 2 * third:
        return np.nan
    ordered = np.sort(shares)
    return float(ordered[-third:].mean() - ordered[:third].mean())


def fewer_than_said(inside: InsideEvidence, *, for_its_steps: bool = True) -> Array:
    """How many times fewer samples it trains on than it says that it has: log2.

    `for_its_steps`: and than its steps have room for, so that whoever makes few steps is not said to have copies.
    Where equal samples are common, at the others or by chance, as those of one or two words are, fewer are different.
    """
    said = np.nan_to_num(inside.matrix("samples")).max(0, initial=0.0)
    batch = np.nan_to_num(inside.matrix("batch")).max(0, initial=0.0)
    used = np.nan_to_num(inside.matrix("steps")).sum(0) * batch
    seen = np.nansum(inside.matrix("new") - np.nan_to_num(inside.matrix("relabelled")), axis=0)
    room = np.minimum(np.minimum(said, used) if for_its_steps else said, _MOST_COUNTED)
    rows = inside.matrix("rows")
    alike = 1 - _mean_by_rows(inside.matrix("distinct"), rows)
    by_chance = alike - (1 - _mean_by_rows(distinct_in_batches(inside), rows))
    usual = float(np.median(alike)) if len(alike) else 0.0
    kinds = _kinds_of(np.minimum(alike, by_chance + usual), batch)
    different = np.minimum(room, kinds * -np.expm1(-room / kinds))
    times = np.where((said > 0) & (seen > 0), np.log2(np.maximum(different, 1) / np.maximum(seen, 1)), np.nan)
    return np.maximum(times, 0.0)


def _kinds_of(alike: Array, batch: Array) -> Array:
    """From how many equally common samples batches are drawn in which this share repeats another: about b / 2 share."""
    return np.maximum(batch, 2.0) / np.maximum(2 * alike, 1e-6)
