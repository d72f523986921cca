"""Real data for the lab: what ships with scikit-learn, what was fetched before, or the caller's own arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from stethos.errors import StethosError, UsageError
from stethos.lab.cache import Images, read
from stethos.lab.choice import choose
from stethos.lab.seed import generator

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Data:
    """A classification task: float32 inputs, labels from 0 to `classes - 1`, split into training and test."""

    name: str
    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    classes: int

    @classmethod
    def of(
        cls,
        x: ArrayLike | torch.Tensor,
        y: ArrayLike | torch.Tensor,
        *,
        test: tuple[ArrayLike | torch.Tensor, ArrayLike | torch.Tensor] | None = None,
        name: str = "own",
        test_share: float = 0.2,
        standardise: bool = False,
        seed: int = 0,
    ) -> Data:
        """Make a task of arrays: images, tables, text features; labels may be numbers or words.

        Inputs become float32. Without `test`, a stratified share is set aside.
        """
        inputs, labels = _inputs(x, "x"), np.asarray(y).reshape(-1)
        if len(inputs) != len(labels):
            raise UsageError(f"{len(inputs)} inputs, but {len(labels)} labels", hint="one label per input")
        names, codes = np.unique(labels, return_inverse=True)
        if test is not None:
            test_inputs, test_labels = _inputs(test[0], "test x"), np.asarray(test[1]).reshape(-1)
            if len(test_inputs) != len(test_labels) or test_inputs.shape[1:] != inputs.shape[1:]:
                raise UsageError(
                    f"test data of shape {test_inputs.shape} with {len(test_labels)} labels "
                    f"do not go with training data of shape {inputs.shape}",
                    hint="test=(x, y) with inputs like those of training",
                )
            if not set(np.unique(test_labels)) <= set(names):
                raise UsageError("the test data have labels that training lacks", hint="leave them out of test=")
            parts = (inputs, codes, test_inputs, np.searchsorted(names, test_labels))
        else:
            parts = _stratified(inputs, codes, test_share, seed)
        if len(names) < 2:
            raise UsageError(f"{len(names)} class in the labels", hint="a task has at least two classes")
        return _made(name, parts, len(names), per_feature=standardise)


def load(name: str, *, seed: int = 0) -> Data:
    """One of the known data sets, standardised; `seed` chooses which samples are set aside for the test.

    MNIST has a test set of its own, whatever the seed.
    """
    return choose("data set", name, DATASETS)(seed)


def _inputs(x: ArrayLike | torch.Tensor, what: str) -> NDArray[np.float32]:
    inputs = np.asarray(x, dtype=np.float32)
    if inputs.ndim < 2 or not len(inputs):
        raise UsageError(
            f"{what} has the shape {inputs.shape}", hint="one row per sample: (samples, features) or an image each"
        )
    if not np.isfinite(inputs).all():
        raise UsageError(f"{what} holds NaN or infinite numbers", hint="clean it before: faults are added on request")
    return inputs


def _stratified(
    x: NDArray[np.float32], y: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    if not 0 < share < 1:
        raise UsageError(f"test_share={share} is not between 0 and 1", hint="test_share=0.2 sets a fifth aside")
    draw = generator(seed, "test split")
    is_test = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        members = draw.permutation(np.flatnonzero(y == label))
        is_test[members[: round(share * len(members))]] = True
    if not is_test.any():
        raise UsageError(f"test_share={share} of {len(y)} samples is none", hint="give test=(x, y) or more samples")
    return x[~is_test], y[~is_test], x[is_test], y[is_test]


def _made(name: str, parts: tuple[Any, Any, Any, Any], classes: int, *, per_feature: bool = True) -> Data:
    """Tensors of the parts, standardised by the training part if asked."""
    train_x, train_y, test_x, test_y = parts
    if per_feature:
        mean, std = train_x.mean(axis=0), train_x.std(axis=0)
        std[std == 0] = 1
        train_x, test_x = (train_x - mean) / std, (test_x - mean) / std
    return Data(
        name,
        torch.from_numpy(np.array(train_x, dtype=np.float32)),
        torch.from_numpy(np.array(train_y, dtype=np.int64)),
        torch.from_numpy(np.array(test_x, dtype=np.float32)),
        torch.from_numpy(np.array(test_y, dtype=np.int64)),
        classes,
    )


@functools.cache
def _from_sklearn(loader: str) -> Arrays:
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        raise StethosError(
            "the data set ships with scikit-learn, which is not installed",
            hint="pip install scikit-learn, or pass your own arrays: data=lab.Data.of(x, y)",
        ) from None
    x, y = getattr(datasets, loader)(return_X_y=True)
    return np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.int64)


def _sklearn(name: str, loader: str) -> Callable[[int], Data]:
    def load_it(seed: int) -> Data:
        x, y = _from_sklearn(loader)
        return _made(name, _stratified(x, y, 0.2, seed), int(y.max()) + 1)

    return load_it


@functools.lru_cache(maxsize=2)
def _images(name: str) -> Images:
    return read(name)


def _fetched(name: str) -> Callable[[int], Data]:
    def load_it(seed: int) -> Data:
        found = _images(name)
        x, y = found["x"].astype(np.float32), found["y"].astype(np.int64)
        if "test_x" in found:
            parts = (x, y, found["test_x"].astype(np.float32), found["test_y"].astype(np.int64))
        else:
            parts = _stratified(x, y, 1 / 7, seed)
        mean, std = parts[0].mean(), parts[0].std()  # one number for all pixels, as is usual for images
        return _made(
            name, ((parts[0] - mean) / std, parts[1], (parts[2] - mean) / std, parts[3]), 10, per_feature=False
        )

    return load_it


DATASETS: dict[str, Callable[[int], Data]] = {
    "digits": _sklearn("digits", "load_digits"),
    "breast-cancer": _sklearn("breast-cancer", "load_breast_cancer"),
    "mnist": _fetched("mnist"),
    "fashion-mnist": _fetched("fashion-mnist"),
}
