"""Weighs all that sets a client apart: one probability per client that it is faulty.

A client that stands out in one number of many may be honest; one that stands out in several that do not depend on each
other hardly is. So numbers are joined in groups that see the same thing, and the groups are added up: each counts more
the farther a client stands out in it, by slopes between a few knots on a logarithmic scale. What a site with other data
would show as well (its loss, the direction of its updates) counts apart where its data are seen to be others.

The slopes come from federations with known faults (`benchmarks/wild/fit.py`). None of the rules about kinds of faults
goes in, so that nothing counts that was made with these federations in sight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort
from stethos.diagnose.federated.data_sketch import joined
from stethos.diagnose.federated.data_unlikeness import data_unlikeness, label_unlikeness
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.repeated_samples import has_few, has_words
from stethos.diagnose.federated.unlikeness import AT_TIMES, MOST, turn_unlikeness, update_unlikeness

Array = npt.NDArray[np.float64]
KNOTS = (0.5, 1.0, 2.0, 4.0, MOST)
# What sees the same thing: of it the farthest counts.
_OVER_ROUNDS = {
    "rest": ("rest",), "sent": ("ratio", "cosine", "unlike"), "size": ("size",), "odd": ("odd",), "begin": ("begin",),
    "rate": ("rate",), "by_gradient": ("stretch", "downhill", "given"), "around_steps": ("turned", "between"),
    "uncleared": ("uncleared",), "trained": ("trained",), "outwards": ("outwards",), "repeats": ("repeats",),
    "relabelled": ("relabelled",), "in_order": ("in_order",),
    "amount": ("steps", "new"), "length": ("step", "moved", "way", "gradient"), "fall": ("fall", "last"),
    "loss": ("log_p", "residual", "entry_loss"), "level": ("level",),
    "norm": ("norm_ratio", "first_ratio", "last_ratio"), "direction": ("cos_centre", "sign_agreement"),
    "zeros": ("zero_share",),
}  # fmt: skip
_OF_DATA = {
    "place": ("place",), "scale": ("scale",), "shape": ("shape",), "words": ("words",), "relation": ("relation",),
    "following": ("worse", "unexplained", "tilt"), "fewer": ("fewer",), "lost": ("lost",),
    **{name: (name,) for name in ("joint", "link", "spread", "fixed", "again", "redundant")},
    **{name: (name,) for name in ("unknown", "rescaled", "order")},
}  # fmt: skip
_OF_LABELS = {
    "labels": ("mean",), "labels_once": ("share_by_data", "share_by_answers", "cell_by_data", "cell_by_answers"),
    "mixed": ("mixed",),
}  # fmt: skip
OF_DATA = (*_OF_DATA, *_OF_LABELS, "elsewhere", "mix")
# Data and amounts are how honest sites differ: they count, but not the more the farther.
UP_TO_ONE = ("place", "scale", "shape", "words", "amount", f"amount{AT_TIMES}")
LINEAR = ("other", "mix", "judged")
# What other data explain.
_EXPLAINED_BY = ("place", "scale", "shape", "words", "mix")
# So do more samples or steps, of which a few do not say where a model goes and errs.
_AMOUNTS, _NOT_BY_FEW, _MANY = ("amount", f"amount{AT_TIMES}"), ("direction", "loss"), 1.5
_CAN_BE_EXPLAINED = tuple(
    one + end for end in ("", AT_TIMES)
    for one in ("direction", "norm", "length", "loss", "fall", "zeros", "size")
)  # fmt: skip
_IS_EXPLAINED = ("level", f"level{AT_TIMES}")  # by other inputs, altogether
# Whoever has other classes, or one alone, moves the model elsewhere and lets its weights grow.
_OF_OTHER_CLASSES = ("judged", "outwards", f"outwards{AT_TIMES}")
_EXPLAINED, EXPLAINS = "_explained", 0.7
# Samples that lie elsewhere than the others' look like other classes, too; wrong labels move none of them.
_OF_OTHER_INPUTS = ("labels", "labels_once", "mixed")
# Whose inputs vary more, or lie elsewhere, has targets of a curved relation that the others' straight one misses by
# more. They follow from the inputs unless more of their own variance is left over, too.
_INPUTS = ("place", "scale", "shape")
# Whose inputs lie elsewhere has some that hang together a little differently, and that shows in one way: in how large
# the residuals are, or in where they point. Noise and mixed up columns show in both. Its targets, which may be the next
# of the same series, then follow differently as well.
_FOLLOWING, _IN_ONE_WAY = _OF_DATA["following"], 0.5
# A site with fewer words has more lines that are alike, and moves the rows of fewer words.
_OF_FEWER_WORDS = tuple(one + end for end in ("", AT_TIMES) for one in ("zeros", "repeats"))
_MOST_OF_MIX = 2.0
# Fewer samples than it says, and equal ones in batches: copies, where lines of text do not come twice anyway.
# Noise and mixed up columns cost the model something. Inputs that hang together in another way and cost nothing are
# another camera's, or made anew for each batch.
_HARM, _HARMS, _MOST_WITHOUT_HARM = ("loss", "labels", "labels_once", "mixed", "fall"), 0.5, 1.0
_OF_UPDATES = {
    **{name: _OVER_ROUNDS[name] for name in ("norm", "direction", "zeros", "loss")},
    "history": ("cos_last", "cos_back", "cos_self"),
}  # fmt: skip
UPDATES = (*(one + end for one in _OF_UPDATES for end in ("", AT_TIMES)), "judged")
INSIDE = (
    *(one + end for one in _OVER_ROUNDS for end in ("", AT_TIMES)), *_OF_DATA, *_OF_LABELS,
    *(one + _EXPLAINED for one in _CAN_BE_EXPLAINED), "copies", "more", "other", "mix", "judged",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class EvidenceWeights:
    """Slopes by number, and from which probability on a share of clean federations has an accusation."""

    slopes: Mapping[str, Array]
    bias: float
    cuts: tuple[tuple[float, float], ...]  # share of clean federations, probability

    def probabilities(self, numbers: Mapping[str, Array]) -> Array:
        total = self.bias + sum(terms_of(name, numbers[name]) @ slopes for name, slopes in self.slopes.items())
        return np.asarray(1 / (1 + np.exp(-np.clip(total, -30.0, 30.0))))

    def cut(self, alarm_rate: float) -> float:
        rates, cuts = zip(*self.cuts, strict=True)
        return float(np.interp(np.log(max(alarm_rate, 1e-6)), np.log(rates), cuts))


def terms_of(name: str, values: Array) -> Array:
    """What a number's slopes are multiplied with, a row per client: how far it gets between each two knots."""
    if name in LINEAR:
        return values[:, None]
    low = np.array(KNOTS[:1] if name in UP_TO_ONE else KNOTS[:-1])
    high = np.array(KNOTS[1 : 1 + len(low)])
    return np.asarray(np.log2(np.clip(values[:, None], low, high) / low))


@cache
def load_weights(name: str) -> EvidenceWeights:
    """Those for evidence from `inside`, or for `updates` alone."""
    text = files("stethos.diagnose.federated").joinpath("weights.json").read_text(encoding="utf-8")
    known = json.loads(text)[name]
    return EvidenceWeights(
        {name: np.array(slopes) for name, slopes in known["slopes"].items()}, known["bias"],
        tuple((float(rate), cut) for rate, cut in known["cuts"].items()),
    )  # fmt: skip


def numbers_of(cohort: Cohort, chances: Array, inside: InsideEvidence | None = None) -> dict[str, Array]:
    """All numbers that are weighed, by name, for the cohort's clients; `chances` are those of the judge of updates."""
    unlike, known = update_unlikeness(cohort), np.clip(chances, 1e-3, 1 - 1e-3)
    found = {"judged": np.maximum(np.log(known / (1 - known)), 0.0)}
    if inside is None:
        return found | _grouped(unlike, _OF_UPDATES)
    places = {client: place for place, client in enumerate(inside.clients)}
    mine = np.array([places.get(client, len(places)) for client in cohort.clients])
    shown = {
        name: np.append(values, 0.0)[mine]  # of who shows nothing from inside, nothing is odd
        for name, values in _from_inside(inside).items()
    }
    found |= _grouped({**unlike, **shown}, _OVER_ROUNDS)
    found |= {group: _farthest(shown, names) for group, names in (*_OF_DATA.items(), *_OF_LABELS.items())}
    found |= {
        "other": shown["other"],
        "more": shown["more"],
        "elsewhere": shown["elsewhere"],
        "mix": np.minimum(shown["mix"], _MOST_OF_MIX),
    }
    has_fewer = (found["fewer"] >= EXPLAINS) & (shown["has_words"] > 0)
    found |= {name: np.where(has_fewer, 0.0, found[name]) for name in _OF_FEWER_WORDS}
    repeats = np.maximum(found["repeats"], found[f"repeats{AT_TIMES}"])
    found["copies"] = np.where(shown["has_words"] > 0, 0.0, np.minimum(found["fewer"], repeats))
    is_elsewhere = shown["elsewhere"] >= EXPLAINS
    found |= {name: np.where(is_elsewhere, 0.0, found[name]) for name in _OF_OTHER_INPUTS}
    found["order"] = np.where(found["labels"] >= EXPLAINS, 0.0, found["order"])  # which inputs tell classes is mixed up
    has_other_inputs = is_elsewhere | (np.max([found[name] for name in _INPUTS], axis=0) >= EXPLAINS)
    left_over = np.minimum(found["relation"], shown["unrelated"])
    found["relation"] = np.where(has_other_inputs, left_over, found["relation"])
    second, first = np.sort([shown[name] for name in _FOLLOWING], axis=0)[-2:]
    in_two_ways = np.where(shown["tilt"] >= EXPLAINS, np.maximum(second, _IN_ONE_WAY * first), _IN_ONE_WAY * first)
    is_moved = is_elsewhere | (np.maximum(found["place"], found["scale"]) >= EXPLAINS)
    found["following"] = np.where(is_moved, in_two_ways, found["following"])
    is_another = is_moved & (np.minimum(shown["worse"], shown["unexplained"]) >= EXPLAINS)
    found["relation"] = np.where(is_another, np.minimum(found["relation"], in_two_ways), found["relation"])
    is_small = shown["has_few"] > 0
    by_data = np.max([found[name] for name in _EXPLAINED_BY], axis=0) >= EXPLAINS
    amount = np.max([found[name] for name in _AMOUNTS], axis=0)
    is_explained = by_data | (amount >= EXPLAINS)
    harm = np.max([found[name] for name in found if name.removesuffix(AT_TIMES) in _HARM], axis=0)
    turned = np.max([found[name] for name in found if name.removesuffix(AT_TIMES) == "direction"], axis=0)
    is_asked = np.isfinite(cohort.entry_loss).any(0)
    has_other_words = (shown["has_words"] > 0) & is_moved & (harm < 1.0)  # which come together as others do
    found["following"] = np.where(has_other_words, _IN_ONE_WAY * found["following"], found["following"])
    found["following"] = np.where(has_fewer, 0.0, found["following"])  # words of few texts go together by chance
    for name, harms in (("lost", harm), ("following", np.maximum(harm, turned))):  # other words turn updates anyway
        is_harmless = is_asked & (harms < _HARMS)
        found[name] = np.where(is_harmless, np.minimum(found[name], _MOST_WITHOUT_HARM), found[name])
    for name in _CAN_BE_EXPLAINED:
        of_few = name.removesuffix(AT_TIMES) in _NOT_BY_FEW
        is_so = by_data | (amount >= _MANY) if of_few else is_explained
        found[name + _EXPLAINED] = np.where(is_so & ~is_small, found[name], 0.0)
        found[name] = np.where(is_so | is_small, 0.0, found[name])
    has_other_classes = (found["mix"] >= EXPLAINS) | is_small
    found |= {name: np.where(has_other_classes, 0.0, found[name]) for name in _OF_OTHER_CLASSES}
    found["judged"] = np.where(found["place"] >= EXPLAINS, 0.0, found["judged"])  # the lab has no such sites
    found |= {name: np.where(is_small, 0.0, found[name]) for name in (*_OF_DATA, *_OF_LABELS)}
    return found | {name: np.where(is_explained, 0.0, found[name]) for name in _IS_EXPLAINED}


def _from_inside(inside: InsideEvidence) -> dict[str, Array]:
    whole = [joined(inside.data[client]) if inside.data.get(client) else None for client in inside.clients]
    return {
        **turn_unlikeness(inside), **data_unlikeness(whole), **label_unlikeness(inside, whole),
        "has_words": has_words(inside).astype(float), "has_few": has_few(inside, whole).astype(float),
    }  # fmt: skip


def _grouped(numbers: Mapping[str, Array], groups: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """Numbers over rounds by group, as a mean and at times."""
    return {
        group + end: _farthest(numbers, [name + end for name in names])
        for group, names in groups.items()
        for end in ("", AT_TIMES)
    }


def _farthest(numbers: Mapping[str, Array], names: Sequence[str]) -> Array:
    """Of those that are known."""
    return np.asarray(np.max([numbers[name] for name in names if name in numbers], axis=0))
