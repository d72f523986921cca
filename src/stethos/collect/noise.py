"""Level L3: numbers about a site's data leave with noise, within a budget that a ledger keeps.

Noise is drawn by OpenDP, and what it costs is added up by dp-accounting: nothing of either is made here. The guarantee
is about one sample of the site replaced by another, for each run: (epsilon, delta)-differential privacy of all numbers
that left with noise. `SITE/ledger.jsonl` is synced before a number is given out, so whoever is killed in between has
spent too much, never too little.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stethos.collect.policy import NoiseBudget
from stethos.errors import UsageError
from stethos.record.border import open_file, read_file

LEDGER_FILE = "ledger.jsonl"
NEEDS_NOISE = "pip install 'stethos[dp]'"
_MOST_LEDGER_BYTES = 64 << 20
_LARGEST_MULTIPLIER = 1e6
_REPLACED = math.sqrt(2.0)  # one sample in another cell: two counts change by one


def spent(releases: Sequence[tuple[float, int]], delta: float) -> float:
    """The epsilon of Gaussian releases: noise in multiples of what one sample can change, and how many of them."""
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for multiplier, count in releases:
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), count))
    return float(accountant.get_epsilon(delta)) if releases else 0.0


def multiplier_for(budget: NoiseBudget) -> float:
    """The least noise with which as many releases as planned stay within the budget."""
    low, high = 1e-3, _LARGEST_MULTIPLIER
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle) if spent([(middle, budget.releases)], budget.delta) <= budget.epsilon else (middle, high)
        )
    return high


class NoiseLedger:
    """What the runs of a site have spent; several drainers may write it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def releases(self, run: str | None = None) -> list[tuple[float, int]]:
        """Multiplier and count of what a run, or all of them, gave out; UsageError if a line cannot be read."""
        with contextlib.suppress(FileNotFoundError):
            return _releases_in(read_file(self.path, _MOST_LEDGER_BYTES), run)
        return []

    def runs(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            lines = read_file(self.path, _MOST_LEDGER_BYTES).splitlines()
            return list(dict.fromkeys(str(json.loads(line)["run"]) for line in lines if line))
        return []

    def pay(self, run: str, what: str, multiplier: float, count: int, budget: NoiseBudget) -> int:
        """Write down as many of `count` releases as the budget of the run allows; they may be made when it returns."""
        with self._locked() as descriptor:
            before = _releases_in(_whole_lines(descriptor), run)
            allowed = _allowed(before, multiplier, count, budget)
            if allowed:
                line = {"t_ns": time.time_ns(), "run": run, "what": what, "multiplier": multiplier, "count": allowed}
                _append(descriptor, json.dumps(line).encode() + b"\n")
            return allowed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        descriptor = open_file(self.path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _allowed(before: list[tuple[float, int]], multiplier: float, count: int, budget: NoiseBudget) -> int:
    """How many more releases the budget bears; cost grows with their number, so a bisection finds it."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        if spent([*before, (multiplier, middle)], budget.delta) <= budget.epsilon:
            low = middle
        else:
            high = middle - 1
    return low


def _whole_lines(descriptor: int) -> bytes:
    """The ledger; a last line without an end is cut off: whoever wrote it was killed before it gave anything out."""
    size = os.fstat(descriptor).st_size
    if size > _MOST_LEDGER_BYTES:
        raise UsageError("the ledger of noise is full", hint="nothing leaves with noise any more")
    content = os.pread(descriptor, size, 0)
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.ftruncate(descriptor, len(whole))
    return whole


def _append(descriptor: int, line: bytes) -> None:
    at = os.fstat(descriptor).st_size
    while line:
        written = os.pwrite(descriptor, line, at)
        line, at = line[written:], at + written
    os.fsync(descriptor)


def _releases_in(content: bytes, run: str | None) -> list[tuple[float, int]]:
    found = []
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            one = json.loads(line)
            multiplier, count, whose = float(one["multiplier"]), int(one["count"]), str(one["run"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(
                "the ledger of noise is damaged", hint="nothing leaves with noise until it is read"
            ) from None
        if not 0 < multiplier <= _LARGEST_MULTIPLIER or count < 0:
            raise UsageError("the ledger of noise is damaged", hint="nothing leaves with noise until it is read")
        if run in (None, whose):
            found.append((multiplier, count))
    return found


_Change = Callable[[Any, int, Callable[[float], float]], Any]  # of a value, its place, and noise for one unit


class NoiseSource:
    """Gives out numbers of one run with noise, after the ledger has them; None where the budget is spent."""

    def __init__(self, ledger: NoiseLedger, run: str) -> None:
        self._ledger = ledger
        self._run = run
        self._multipliers: dict[NoiseBudget, float] = {}
        self._made: dict[float, Callable[[float], float]] = {}

    def shares(
        self, what: str, values: Sequence[float | None], samples: Sequence[int], budget: NoiseBudget
    ) -> list[float | None]:
        """Shares of samples: one sample changes each by 1 / its samples."""
        return self._released(
            what, values, budget, lambda share, place, noise: share + noise(1.0) / max(samples[place], 1)
        )  # fmt: skip

    def counts(self, what: str, texts: Sequence[str | None], budget: NoiseBudget) -> list[str | None]:
        """Matrices of counts as JSON, all of one size that does not depend on the data.

        Each says how large its noise is, as `{"noise": 12.3, "counts": [[...]]}`, so that nobody takes it for counts.
        """
        sizes = budget.classes
        known = [text if text is not None and sizes else None for text in texts]
        deviation = self._multiplier(budget) if any(known) else 0.0
        return self._released(what, known, budget, lambda text, _, noise: _noised_counts(text, sizes, noise, deviation))

    def _released(self, what: str, values: Sequence[Any], budget: NoiseBudget, change: _Change) -> list[Any]:
        known = [place for place, value in enumerate(values) if value is not None]
        released: list[Any] = [None] * len(values)
        if not known:
            return released
        multiplier = self._multiplier(budget)
        allowed = self._ledger.pay(self._run, what, multiplier, len(known), budget)
        for place in known[:allowed]:
            released[place] = change(values[place], place, lambda unit: self._gaussian(multiplier * unit))
        return released

    def _multiplier(self, budget: NoiseBudget) -> float:
        if budget not in self._multipliers:
            self._multipliers[budget] = multiplier_for(budget)
        return self._multipliers[budget]

    def _gaussian(self, scale: float) -> float:
        if scale not in self._made:
            import opendp.prelude as opendp

            opendp.enable_features("contrib")
            domain, metric = opendp.atom_domain(T=float, nan=False), opendp.absolute_distance(T=float)
            self._made[scale] = opendp.m.make_gaussian(domain, metric, scale=scale)
        return float(self._made[scale](0.0))


def _noised_counts(text: str, classes: int, noise: Callable[[float], float], deviation: float) -> str | None:
    try:
        rows = json.loads(text)
        cells = {(int(i), int(j)): float(value) for i, row in enumerate(rows) for j, value in enumerate(row)}
    except (ValueError, TypeError, RecursionError):
        return None
    counts = [
        [max(0, round(cells.get((i, j), 0.0) + noise(_REPLACED))) for j in range(classes)] for i in range(classes)
    ]
    return json.dumps({"noise": round(deviation * _REPLACED, 1), "counts": counts})
