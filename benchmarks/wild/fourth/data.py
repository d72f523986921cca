"""Data sets of the fourth set: five that come inside of packages, six that are drawn from a fixed seed.

penguins: scikit-learn's tests. atlas: networkx. water: the wheel of river. membrane: matplotlib. characters: Python's
table of Unicode. `groups` is 1 in the rows of another group, such as penguins of another island.
"""

from __future__ import annotations

import csv
import functools
import gzip
import re
import unicodedata
from collections import Counter

import numpy as np

from benchmarks.wild.data import Array, Samples, place_of_package, wheel

WINDOW = 24  # values of a series that a model sees
COMPLAINTS = slice(7, 12)  # the columns of `ward` that hold a category, one for each
_LENGTH = 16  # tokens of a text


@functools.cache
def samples_of(name: str) -> Samples:
    return _READERS[name]()


def _is_high(values: Array, quantile: float = 0.8) -> Array:
    return np.asarray(values > np.quantile(values, quantile)).astype(int)


def _standard(values: Array) -> Array:
    return np.asarray((values - values.mean()) / values.std(), np.float32)


def _penguins() -> Samples:
    """Which species a penguin is, by bill, flipper, mass and sex; those of Biscoe are the other group."""
    path = place_of_package("sklearn") / "datasets/tests/data/openml/id_42585/data-v1-dl-21854866.arff.gz"
    with gzip.open(path, "rt") as file:
        lines = re.split(r"(?im)^@data\s*$", file.read())[1].strip().splitlines()
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    measured = np.array([[np.nan if cell == "?" else float(cell) for cell in row[2:6]] for row in rows])
    measured = np.where(np.isnan(measured), np.nanmedian(measured, axis=0), measured)
    sexes = [[float(row[6] == "MALE"), float(row[6] == "FEMALE")] for row in rows]
    species = sorted({row[0] for row in rows})
    return Samples(
        np.column_stack([measured, sexes]).astype(np.float32),
        np.array([species.index(row[0]) for row in rows]),
        np.array([int(row[1] == "Biscoe") for row in rows]),
    )


def _atlas() -> Samples:
    """All graphs of up to seven nodes as rows of edges, each numbered in four ways: how many triangles they have."""
    import networkx

    draw = np.random.default_rng(11)
    inputs, counts = [], []
    upper = np.triu_indices(7, 1)
    for graph in networkx.graph_atlas_g():
        for _ in range(4):
            order = draw.permutation(7)
            edges = np.zeros((7, 7), np.float32)
            for first, second in graph.edges():
                edges[order[first], order[second]] = edges[order[second], order[first]] = 1
            inputs.append(edges[upper])
            counts.append(np.trace(edges @ edges @ edges) / 6)
    rows = np.stack(inputs)
    return Samples(rows, np.digitize(counts, [0.5, 3.5]), _is_high(rows.sum(1), 0.75))


def _windows(values: Array, ahead: int, step: int) -> tuple[Array, Array]:
    starts = np.arange(0, len(values) - WINDOW - ahead, step)
    return np.stack([values[one : one + WINDOW] for one in starts]), values[starts + WINDOW - 1 + ahead]


def _water() -> Samples:
    """The flow through a pipe in two hours, from that of a day; days of much flow are the other group."""
    lines = wheel("river").read("river/datasets/water-flow.csv").decode().splitlines()
    values = np.array([float(line.split(",")[1] or "nan") for line in lines[1:]])
    values = np.where(np.isnan(values), np.nanmedian(values), values).astype(np.float32)
    inputs, goal = _windows(values, ahead=2, step=1)
    return Samples(inputs, _standard(goal), _is_high(inputs.mean(1)))


def _membrane() -> Samples:
    """The potential of a nerve's membrane a moment ahead; stretches that vary much are the other group."""
    import matplotlib.cbook

    with matplotlib.cbook.get_sample_data("membrane.dat") as file:
        values = np.frombuffer(file.read(), np.float32)
    inputs, goal = _windows(values.astype(np.float32), ahead=3, step=2)
    return Samples(inputs[:6000], _standard(goal[:6000]), _is_high(inputs[:6000].std(1)))


def _characters() -> Samples:
    """Names of characters without the word that says it: letter, mark, number or symbol; other: long names."""
    kinds = {"Ll": 0, "Lu": 0, "Mn": 1, "Mc": 1, "Nd": 2, "No": 2, "Nl": 2, "So": 3, "Sm": 3, "Po": 3}
    telling = {"LETTER", "SIGN", "DIGIT", "NUMBER", "SYMBOL", "MARK", "SMALL", "CAPITAL", "VOWEL"}
    found: list[tuple[list[str], int]] = []
    for code in range(0x20000):
        kind = kinds.get(unicodedata.category(chr(code)))
        name = unicodedata.name(chr(code), "")
        words = [word for word in re.split("[ -]", name) if word not in telling]
        if kind is not None and len(words) >= 2:
            found.append((words[-_LENGTH:], kind))
    draw = np.random.default_rng(12)
    by_kind = [[one for one in found if one[1] == kind] for kind in range(4)]
    listed = [of[place] for of in by_kind for place in draw.permutation(len(of))[:1400]]
    counts = Counter(word for words, _ in listed for word in words)
    common = sorted(counts, key=lambda word: (-counts[word], word))[:398]
    number = {word: place + 2 for place, word in enumerate(common)}
    tokens = np.zeros((len(listed), _LENGTH), np.int64)
    for row, (words, _) in enumerate(listed):
        tokens[row, : len(words)] = [number.get(word, 1) for word in words]
    return Samples(tokens, np.array([kind for _, kind in listed]), np.array([int(len(w) > 4) for w, _ in listed]))


def _ward() -> Samples:
    """Patients of an emergency ward, with gaps: one of three urgencies; those over 70 are the other group."""
    draw, count = np.random.default_rng(13), 6000
    age = draw.gamma(6, 8, count).clip(1, 99)
    pulse = draw.normal(82 + 0.1 * age, 14)
    pressure = draw.normal(118 + 0.3 * age, 17)
    oxygen = 99 - draw.gamma(1.6, 1.7, count)
    heat = 36.6 + draw.gamma(1.2, 0.6, count)
    glucose = draw.lognormal(1.7, 0.3, count)
    complaint = draw.choice(5, count, p=[0.3, 0.25, 0.2, 0.15, 0.1])
    danger = np.array([0.0, 0.9, -0.5, 1.8, -1.2])[complaint]
    risk = (
        0.03 * (age - 48) + 0.04 * (pulse - 86) - 0.02 * (pressure - 130) - 0.55 * (oxygen - 96) + 0.7 * (heat - 37.3)
        + 0.15 * (glucose - 5.6) + danger + draw.logistic(0, 0.4, count)
    )  # fmt: skip
    measured = np.column_stack([age, pulse, pressure, oxygen, heat, glucose])
    gaps = draw.random(measured.shape) < np.array([0.0, 0.03, 0.05, 0.08, 0.1, 0.25])
    measured = np.where(gaps, np.median(measured, axis=0), measured)
    inputs = np.column_stack([measured, gaps[:, 5], complaint[:, None] == np.arange(5)])
    return Samples(inputs.astype(np.float32), np.digitize(risk, np.quantile(risk, [0.5, 0.8])), (age > 70).astype(int))


def _gait() -> Samples:
    """Three axes of a phone in a pocket, 32 instants: stands, walks, runs or climbs; left pockets are the other group.

    The other group's phones lie the other way round on one axis by a small angle.
    """
    draw, count = np.random.default_rng(14), 4000
    kind = draw.integers(0, 4, count)
    speed = np.array([0.0, 1.7, 2.8, 1.4])[kind] * draw.normal(1, 0.08, count)
    force = np.array([0.05, 0.7, 1.5, 0.8])[kind] * draw.lognormal(0, 0.2, count)
    phase, time = draw.random(count) * 2 * np.pi, np.arange(32) / 16
    wave = 2 * np.pi * speed[:, None] * time + phase[:, None]
    up = force[:, None] * (np.sin(wave) + 0.3 * np.sin(2 * wave))
    ahead = 0.6 * force[:, None] * np.cos(wave) + np.array([0.0, 0.0, 0.1, 0.45])[kind][:, None]
    aside = 0.3 * force[:, None] * np.sin(wave / 2)
    signals = np.stack([up + 1, ahead, aside], 1) + draw.normal(0, 0.25, (count, 3, 32))
    group = (draw.random(count) < 0.2).astype(int)
    tilt = 0.25 * group[:, None]
    turned = np.stack([signals[:, 0], signals[:, 1] + tilt * signals[:, 2], signals[:, 2] - tilt * signals[:, 1]], 1)
    return Samples(turned.astype(np.float32), kind, group)


def _shapes() -> Samples:
    """Drawn disks, boxes, triangles, crosses and rings, 12 x 12 pixels; thick strokes are the other group."""
    from PIL import Image, ImageDraw

    draw, found, labels, groups = np.random.default_rng(15), [], [], []
    for place in range(5000):
        kind, thick = place % 5, int(draw.random() < 0.2)
        size = int(draw.integers(26, 42))
        left, top = int(draw.integers(2, 46 - size)), int(draw.integers(2, 46 - size))
        right, bottom, wide = left + size, top + size, 8 if thick else 5
        image = Image.new("L", (48, 48), int(draw.integers(0, 60)))
        pen, ink = ImageDraw.Draw(image), int(draw.integers(170, 256))
        match kind:
            case 0:
                pen.ellipse((left, top, right, bottom), fill=ink)
            case 1:
                pen.rectangle((left, top, right, bottom), outline=ink, width=wide)
            case 2:
                pen.polygon([(left, bottom), (right, bottom), ((left + right) // 2, top)], fill=ink)
            case 3:
                pen.line((left, top, right, bottom), fill=ink, width=wide)
                pen.line((left, bottom, right, top), fill=ink, width=wide)
            case 4:
                pen.ellipse((left, top, right, bottom), outline=ink, width=wide)
        pixels = np.asarray(image, np.float32).reshape(12, 4, 12, 4).mean((1, 3))
        found.append((pixels + draw.normal(0, 12, (12, 12)))[None])
        labels.append(kind)
        groups.append(thick)
    return Samples(np.stack(found).astype(np.float32), np.array(labels), np.array(groups))


def _reads() -> Samples:
    """Pieces of drawn DNA as overlapping triplets: from which of four organisms; rich in GC is the other group."""
    draw, count = np.random.default_rng(16), 5000
    chances = [draw.dirichlet([0.7] * 4, size=16) for _ in range(4)]  # of a base after two others
    kind = draw.integers(0, 4, count)
    bases = draw.integers(0, 4, (count, _LENGTH + 2))
    for place in range(2, _LENGTH + 2):
        before = 4 * bases[:, place - 2] + bases[:, place - 1]
        sums = np.stack([chances[one][pair] for one, pair in zip(kind, before, strict=True)]).cumsum(1)
        bases[:, place] = (draw.random((count, 1)) > sums[:, :3]).sum(1)
    triplets = 16 * bases[:, :-2] + 4 * bases[:, 1:-1] + bases[:, 2:] + 2
    return Samples(triplets.astype(np.int64), kind, _is_high(((bases == 1) | (bases == 2)).mean(1)))


def _calls() -> Samples:
    """Calls that a centre gets in an hour, by hour, weekday, weather and campaign; weekends are the other group."""
    draw, count = np.random.default_rng(17), 6000
    hour, day = draw.integers(0, 24, count), draw.integers(0, 7, count)
    rain, campaign = draw.gamma(0.7, 2.0, count), (draw.random(count) < 0.2).astype(float)
    wait, staff = draw.gamma(2.0, 1.5, count), draw.normal(10, 2, count)
    rate = np.exp(
        0.9 - 0.8 * np.cos(2 * np.pi * (hour - 2) / 24) - 0.6 * (day > 4) + 0.06 * rain + 0.5 * campaign - 0.05 * wait
    )
    inputs = np.column_stack(
        [
            np.sin(2 * np.pi * hour / 24), np.cos(2 * np.pi * hour / 24), day > 4, day, np.sqrt(rain), campaign, wait,
            staff,
        ]
    )  # fmt: skip
    return Samples(inputs.astype(np.float32), draw.poisson(rate).astype(np.float32), (day > 4).astype(int))


def _claims() -> Samples:
    """What a claim costs, with a heavy tail, by car, driver and damage; lorries are the other group."""
    draw, count = np.random.default_rng(18), 6000
    power, age, years = draw.lognormal(4.5, 0.35, count), draw.uniform(18, 85, count), draw.gamma(1.5, 5, count)
    damage, region = draw.integers(0, 4, count), draw.normal(0, 1, (count, 3))
    lorry = (draw.random(count) < 0.2).astype(float)
    cost = (
        0.9 * np.log(power / 90) + 0.0006 * (age - 48) ** 2 - 0.03 * years + 0.6 * damage + region @ [0.3, -0.2, 0.0]
        + 0.5 * lorry + 0.35 * draw.standard_t(2.5, count)
    )  # fmt: skip
    inputs = np.column_stack([power, age, years, damage, lorry, region])
    return Samples(inputs.astype(np.float32), (cost - 1.0).clip(-8, 12).astype(np.float32), lorry.astype(int))


_READERS = {
    "penguins": _penguins, "atlas": _atlas, "water": _water, "membrane": _membrane, "characters": _characters,
    "ward": _ward, "gait": _gait, "shapes": _shapes, "reads": _reads, "calls": _calls, "claims": _claims,
}  # fmt: skip
