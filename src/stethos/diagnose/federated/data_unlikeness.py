"""How unlike the others' a client's samples and labels are, against what those differ by among themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.column_order import column_order
from stethos.diagnose.federated.column_unlikeness import column_unlikeness
from stethos.diagnose.federated.column_values import scales_of
from stethos.diagnose.federated.data_sketch import Sketch, fewest_samples
from stethos.diagnose.federated.inside_data import residuals_of
from stethos.diagnose.federated.inside_evidence import InsideEvidence
from stethos.diagnose.federated.inside_label import by_answers, by_data
from stethos.diagnose.federated.reference import references_of
from stethos.diagnose.federated.standing_out import deviations, middle_of
from stethos.diagnose.federated.token_unlikeness import unknown_words
from stethos.diagnose.federated.unlikeness import relative

Array = npt.NDArray[np.float64]
_FEWEST_SAMPLES, _FEWEST_LABELLED = 8, 15
_FEWEST_FREE = 10  # samples beyond one of each class
_DATA = {"shape": 0.15, "place": 0.3, "words": 0.02, "mix": 0.05, "relation": 0.1, "scale": 0.1,
         "rescaled": 0.2}  # fmt: skip
_FLOOR = 0.01  # of all labels: what honest clients differ by
_INFORMED = 1e-3  # of the variance within classes, between them
_CLASSES_DIFFER = 0.5  # by which share of the usual variance within classes that of single ones differs
_ANOTHER_LANGUAGE = 0.8  # of the words
_FEWEST_WITH_WORD, _FEWEST_WORDS, _HARDLY = 8, 4, 4.0  # samples; words; times less often
_FLOOR_ELSEWHERE, _HARDLY_APART = 0.05, 1e-3  # standard deviations; of how far classes lie apart
_FLOOR_LEFT_OVER, _MOST_LEFT, _OF_ONE = 0.03, 2.0, 0.5  # of the variance of targets; the error with one sample
_FLOOR_AGAIN = 0.03  # of the words of a text
_LEAST, _MOST = -2.0, 8.0  # deviations that one witness counts
_SURE_ENOUGH = 1.0  # standard error of a share: where it is larger, classes are too near to each other
_SURELY_WRONG, _FEWEST_WRONG, _EXPLAINED = 3.0, 0.1, 0.7  # deviations and share of one class for another; see by_data


def data_unlikeness(clients: Sequence[Sketch | None]) -> dict[str, Array]:
    """By how a client's samples differ: within and between classes, words, mix of labels, targets, single columns.

    `worse`, `unexplained` and `tilt` say how a feature follows from the others, `elsewhere` how far all samples
    together lie from the others', `unrelated` which share of its targets' variance the others' relation leaves over.
    """
    raw = {name: np.full(len(clients), np.nan) for name in _DATA}
    lost, lost_error, elsewhere, elsewhere_error, unrelated, unrelated_error = np.full((6, len(clients)), np.nan)
    for place, mine, whole in _compared(clients, _FEWEST_SAMPLES):
        others = [one for at, one in enumerate(clients) if at != place and one is not None and one.can_join(mine)]
        for name, value in _differences(mine, others, whole).items():
            raw[name][place] = value
        if mine.targets:
            unrelated[place], unrelated_error[place] = _left_over(mine, whole)[1], _OF_ONE / np.sqrt(mine.n)
        lost[place], lost_error[place] = _lost_words(mine, others)
        elsewhere[place], elsewhere_error[place] = _displacement(mine, whole)
    is_compared = np.array([one is not None and one.n >= _FEWEST_SAMPLES for one in clients])
    raw["scale"], raw["rescaled"] = np.where(is_compared, _scale_distances(clients), np.nan)
    mixes = raw["mix"].copy()
    for place, distance, error in _mixes_put_right(clients):
        usual = np.delete(mixes, place)
        if distance <= np.median(usual[np.isfinite(usual)]) + error:  # else it is another mix all the same
            raw["mix"][place] = min(mixes[place], distance)
    worse, unexplained, tilt, errors = residuals_of(clients, clients)
    (again, again_error), (unknown, unknown_error) = repeated_words(clients), unknown_words(clients)
    return {
        **{name: relative(raw[name], floor) for name, floor in _DATA.items()},
        "unrelated": relative(unrelated, _FLOOR_LEFT_OVER, unrelated_error),
        "worse": relative(worse, 0.02, errors), "unexplained": relative(unexplained, 0.02, errors),
        "tilt": relative(tilt, 0.03, errors), "lost": relative(lost, 0.02, lost_error),
        "again": relative(again, _FLOOR_AGAIN, again_error),
        "unknown": relative(unknown, _FLOOR_AGAIN, unknown_error),
        "redundant": np.minimum(relative(-worse, 0.02, errors), relative(-unexplained, 0.02, errors)),
        **column_unlikeness(clients), "order": column_order(tuple(clients)),
        "elsewhere": relative(elsewhere, _FLOOR_ELSEWHERE, elsewhere_error),
    }  # fmt: skip


def label_unlikeness(inside: InsideEvidence, whole: Sequence[Sketch | None]) -> dict[str, Array]:
    """How far wrong labels stand out, by witness, and by the `mean` of all witnesses.

    The others' samples of each class; the global model's answers; samples that spread as those of other classes do;
    neighbours with other labels.
    """
    data, answers = by_data(whole, whole), by_answers(inside, inside.rounds[1:])
    mixed, mixed_error = mixed_within_classes(whole)
    count = np.array([one.n if one is not None else 0.0 for one in whole])
    near_error = 0.7 / np.sqrt(np.maximum(count, 1.0))
    told = {
        "share_by_data": (data.share, _FLOOR, data.error), "cell_by_data": (data.cell, _FLOOR, data.cell_error),
        "share_by_answers": (answers.share, _FLOOR, answers.error),
        "cell_by_answers": (answers.cell, _FLOOR, answers.cell_error),
        "mixed": (mixed, 0.02, mixed_error), "neighbours": (-_neighbours(whole), 0.05, near_error),
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where no witness speaks
        mean = np.nanmean([np.clip(deviations(*one), _LEAST, _MOST) for one in told.values()], axis=0)
    return {**{name: relative(*one) for name, one in told.items()}, "mean": relative(mean, 0.4)}


def mixed_within_classes(clients: Sequence[Sketch | None]) -> tuple[Array, Array]:
    """How much more a client's classes spread towards each other than in other directions, and its standard error.

    About the share of wrong labels: where they are random it is 1. Inputs that vary more spread in all directions. Some
    classes vary more than others: who has another mix of them is judged less surely.
    """
    share, error = np.full((2, len(clients)), np.nan)
    for place, mine, whole in _compared(clients, fewest_samples(clients, _FEWEST_LABELLED)):
        inputs, free = mine.inputs, mine.n - len(mine.counts)
        if mine.classes is None or len(whole.counts) < 2 or free < _FEWEST_FREE:
            continue
        root = np.linalg.inv(np.linalg.cholesky(whole.covariance[:inputs, :inputs]))
        middle = np.average(whole.means[:, :inputs], axis=0, weights=whole.counts)
        between = (whole.means[:, :inputs] - middle) * np.sqrt(whole.counts / whole.n)[:, None] @ root.T
        sizes, ways = np.linalg.svd(between, full_matrices=False)[1:]
        count = min(len(whole.counts) - 1, inputs)
        expected, ways = np.maximum(sizes[:count] ** 2 - 1 / whole.n, 0.0), ways[:count]
        if expected.sum() <= _INFORMED:
            continue
        own = root @ (mine.scatter[:inputs, :inputs] / free) @ root.T
        along = ((ways @ own) * ways).sum(1)
        rest = (np.trace(own) - along.sum()) / (inputs - count) if inputs > count else 1.0
        scale = float((expected**2).sum())
        by_chance = np.sqrt(2 / free * (expected**2 * np.maximum(along, 0.5) ** 2).sum())
        of_mix = _CLASSES_DIFFER * _mix_distance(_mix_of(mine), whole) * expected.sum()
        known = float(np.hypot(by_chance, of_mix)) / scale
        if known <= _SURE_ENOUGH:
            share[place], error[place] = float(((along - rest) * expected).sum()) / scale, known
    return share, error


def _compared(clients: Sequence[Sketch | None], fewest: float) -> Iterator[tuple[int, Sketch, Sketch]]:
    """Clients with so many samples, each with all others' samples together."""
    for place, (mine, whole) in enumerate(zip(clients, references_of(clients, clients), strict=True)):
        if mine is not None and whole is not None and mine.n >= fewest:
            yield place, mine, whole


def _neighbours(clients: Sequence[Sketch | None]) -> Array:
    """How much more often neighbours have the same label than by chance; 1 is always."""
    fewest = fewest_samples(clients, _FEWEST_LABELLED)
    return np.array([
        (one.near[0] - one.near[1]) / max(1 - one.near[1], 0.05)
        if one is not None and one.near is not None and one.n >= fewest else np.nan
        for one in clients
    ])  # fmt: skip


def _differences(mine: Sketch, others: Sequence[Sketch], whole: Sketch) -> dict[str, float]:
    inputs = mine.features - mine.targets
    found = {}
    precision = whole.precision(inputs)
    change = precision @ mine.covariance[:inputs, :inputs]
    found["shape"] = float(np.log(max(0.5 * (np.trace(change) - inputs - np.linalg.slogdet(change)[1]) / inputs, 1e-4)))
    labels = (0,) if mine.classes is None or whole.classes is None else whole.classes
    distance = total = 0.0
    for label, count, mean in zip(mine.classes or (0,), mine.counts, mine.means, strict=True):
        if label in labels:
            apart = (mean - whole.means[labels.index(label)])[:inputs]
            distance, total = distance + count * float(apart @ precision @ apart) / inputs, total + count
    if total:
        found["place"] = float(np.log(max(distance / total, 1e-4)))
    if mine.classes is not None:
        found["mix"] = _mix_distance(_mix_of(mine), whole)
    if mine.targets:
        found["relation"] = _left_over(mine, whole)[0]
    if mine.tokens:
        found["words"] = _word_distance(mine.tokens, [one.tokens for one in others if one.tokens])
    return found


def _mixes_put_right(clients: Sequence[Sketch | None]) -> Iterator[tuple[int, float, float]]:
    """How far the mix of classes lies from the others' once labels that are surely wrong are put right; its error.

    Who calls one class another has too much of one and too little of the other: that is no other mix, which excuses.
    """
    found = by_data(clients, clients)
    surely = deviations(found.cell, _FLOOR, found.cell_error)
    for place, mine, whole in _compared(clients, fewest_samples(clients, _FEWEST_LABELLED)):
        pair, share = found.pairs[place], float(found.cell[place])
        is_sure = surely[place] >= _SURELY_WRONG and found.explained[place] >= _EXPLAINED
        if pair is not None and is_sure and share >= _FEWEST_WRONG:
            own, (said, meant) = _mix_of(mine), pair
            moved = min(share, own[said])
            meant_mix = {**own, said: own[said] - moved, meant: own.get(meant, 0.0) + moved}
            yield place, _mix_distance(meant_mix, whole), float(found.cell_error[place])


def _mix_of(mine: Sketch) -> dict[int, float]:
    """The share of each class."""
    return dict(zip(mine.classes or (0,), (mine.counts / mine.n).tolist(), strict=True))


def _mix_distance(own: Mapping[int, float], whole: Sketch) -> float:
    """The share of its samples that another class would have to hold for the others' mix of classes."""
    theirs = _mix_of(whole)
    return 0.5 * float(sum(abs(own.get(one, 0.0) - theirs.get(one, 0.0)) for one in own.keys() | theirs.keys()))


def _displacement(mine: Sketch, whole: Sketch) -> tuple[float, float]:
    """How far a client's samples, all together, lie from any mixture of the others' classes, and its standard error.

    Wrong labels move samples between classes and leave all of them together where they are, whatever mix of classes a
    client has. Other inputs, of other people or another camera, lie elsewhere.
    """
    inputs = mine.features - mine.targets
    precision, means = whole.precision(inputs), whole.means[:, :inputs]
    middle = whole.counts @ means / whole.n
    ways, apart = means - middle, mine.counts @ mine.means[:, :inputs] / mine.n - middle
    if len(ways) > 1:
        products = ways @ precision @ ways.T
        room = _HARDLY_APART * float(np.trace(products)) / len(ways) + 1e-12
        apart = apart - np.linalg.solve(products + room * np.eye(len(ways)), ways @ precision @ apart) @ ways
    own = mine.scatter[:inputs, :inputs] / max(mine.n - len(mine.counts), 1)
    by_chance = float((precision * own).sum()) / mine.n  # where the others' inputs hardly vary, noise is far from them
    distance = max(float(apart @ precision @ apart) - by_chance, 0.0)
    return float(np.sqrt(distance / inputs)), float(np.sqrt(by_chance / inputs))


def _left_over(mine: Sketch, whole: Sketch) -> tuple[float, float]:
    """What the others' linear relation leaves over of the targets: of what it leaves there, as a logarithm; as a share.

    Where inputs vary more a curved relation leaves more over, of targets that vary more: only the first grows.
    """
    inputs, reference = mine.features - mine.targets, whole.covariance
    slope = np.linalg.solve(reference[:inputs, :inputs], reference[:inputs, inputs:])
    moment = mine.scatter / mine.n
    goal = moment[inputs:, inputs:]
    own = goal - 2 * slope.T @ moment[:inputs, inputs:] + slope.T @ moment[:inputs, :inputs] @ slope
    usual = reference[inputs:, inputs:] - slope.T @ reference[:inputs, inputs:]
    left = max(float(np.trace(own)), 1e-12)
    return float(np.log(left / max(np.trace(usual), 1e-12))), min(left / max(float(np.trace(goal)), 1e-12), _MOST_LEFT)


def _word_distance(mine: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> float:
    """The Jensen-Shannon divergence between a client's words and the others'."""
    words = sorted({word for tokens in (mine, *others) for word in tokens})
    own = np.array([mine.get(word, 0.0) for word in words])
    theirs = np.array([sum(tokens.get(word, 0.0) for tokens in others) for word in words])
    own, theirs = own / max(own.sum(), 1e-9), theirs / max(theirs.sum(), 1e-9)
    middle = np.maximum((own + theirs) / 2, 1e-12)
    return float(sum(0.5 * (one * np.log(np.where(one > 0, one / middle, 1.0))).sum() for one in (own, theirs)))


def _lost_words(mine: Sketch, others: Sequence[Sketch]) -> tuple[float, float]:
    """The share of the words that all others use which a client hardly has, and half a word as a share.

    Whom a site serves changes how often such words come; another tokenizer, or a step that drops words, takes some away
    and leaves the rest. Where nearly all are gone, it is another language, or another numbering: nobody can say.
    """
    known = [one.tokens for one in others if one.tokens]
    if not mine.tokens or len(known) < 3:
        return np.nan, np.nan
    words = sorted({word for tokens in known for word in tokens})
    shares = np.sort([[tokens.get(word, 0.0) for word in words] for tokens in known], axis=0)
    least = min(mine.tokens.values())  # what is rarer is not told
    own = np.array([mine.tokens.get(word, least) for word in words])
    usual, is_of_all = middle_of(shares), shares[1] * mine.n >= _FEWEST_WITH_WORD  # but for one, who may be odd
    count = int(is_of_all.sum())
    if count < _FEWEST_WORDS:
        return np.nan, np.nan
    share = float((own < usual / _HARDLY)[is_of_all].mean())
    return share if share < _ANOTHER_LANGUAGE else 0.0, 0.5 / count


def repeated_words(clients: Sequence[Sketch | None]) -> tuple[Array, Array]:
    """Which share of a text's words repeats others of it, and its standard error."""
    told = [one.again if one is not None and one.n >= _FEWEST_SAMPLES else None for one in clients]
    count = np.array([one.n if one is not None else 1.0 for one in clients])
    share, spread = np.array([one if one is not None else (np.nan, np.nan) for one in told], float).reshape(-1, 2).T
    return share, spread / np.sqrt(count)


def _scale_distances(clients: Sequence[Sketch | None]) -> Array:
    """How far the columns' middles and deviations lie from the others', on average; how far the deviations of most do.

    Other people differ in some columns, another scaler in nearly all of them. NaN where columns are not known.
    """
    found = np.full((2, len(clients)), np.nan)
    for known in scales_of(tuple(clients)):
        usual = known.usual_deviation
        scale = np.maximum(usual, 0.05 * np.median(usual, axis=1, keepdims=True) + 1e-9)
        wider = np.log(np.maximum(known.deviation, scale / 20) / scale)
        moved = np.minimum(np.abs(known.middle - known.usual_middle) / scale, 5.0)
        found[0, known.places] = (np.minimum(np.abs(wider), 3.0) + moved).mean(1)
        found[1, known.places] = np.abs(np.nanmedian(np.where(usual >= scale, wider, np.nan), axis=1))
    return found
