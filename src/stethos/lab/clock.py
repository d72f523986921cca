"""A virtual clock: what a round would take on clients and links of given speed. Nothing sleeps.

Speeds are drawn from the seed with a mild spread; a slow client or link
multiplies its times. Clients work side by side, so a round lasts until the last
reply, or until the deadline if somebody misses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stethos.errors import UsageError
from stethos.lab.seed import generator


@dataclass(frozen=True, slots=True)
class Timing:
    """The pace of the virtual federation.

    `spread` and `jitter` are standard deviations of the logarithm of a client's speed,
    drawn once, and of each of its times. The deadline is `patience`
    times what the slowest honest client is expected to take.
    """

    sample_ms: float = 0.5
    latency_ms: float = 20.0
    bytes_per_ms: float = 1250.0  # 10 Mbit/s
    spread: float = 0.15
    jitter: float = 0.03
    aggregate_ms: float = 5.0
    patience: float = 20.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name}={value}", hint="times and speeds are finite and not negative")
        if not (self.bytes_per_ms > 0 and self.patience >= 1):
            raise UsageError(
                f"bytes_per_ms={self.bytes_per_ms}, patience={self.patience}",
                hint="a link has some speed, and patience is at least 1",
            )


@dataclass(frozen=True, slots=True)
class Trip:
    """How long one client takes in one round; endless if its reply never comes."""

    download_ms: float
    compute_ms: float
    upload_ms: float

    @property
    def total_ms(self) -> float:
        return self.download_ms + self.compute_ms + self.upload_ms


@dataclass(frozen=True, slots=True)
class Slowdown:
    """By how much a client's computing and its link are slowed down."""

    compute: float = 1.0
    link: float = 1.0


class VirtualClock:
    """The time of one federation: `now_ms` moves on when a round ends."""

    def __init__(self, timing: Timing, samples: list[int], state_bytes: int, seed: int) -> None:
        self.now_ms = 0.0
        self.timing = timing
        self._samples = samples
        self._state_bytes = state_bytes
        self._seed = seed
        draws = generator(seed, "speed").standard_normal((2, len(samples)))
        self._compute_pace, self._link_pace = (
            [math.exp(timing.spread * value) for value in row] for row in draws.tolist()
        )
        self.deadline_ms = timing.patience * max(self._expected(client).total_ms for client in range(len(samples)))

    def trip(self, client: int, number: int, slowness: Slowdown) -> Trip:
        """How long a client takes in a round. `samples` are those it trains on, with repetitions."""
        expected = self._expected(client)
        draws = generator(self._seed, "jitter", client, number).standard_normal(3)
        down, compute, up = (math.exp(self.timing.jitter * value) for value in draws.tolist())
        return Trip(
            expected.download_ms * down * slowness.link,
            expected.compute_ms * compute * slowness.compute,
            expected.upload_ms * up * slowness.link,
        )

    def _expected(self, client: int) -> Trip:
        link = (self.timing.latency_ms + self._state_bytes / self.timing.bytes_per_ms) * self._link_pace[client]
        return Trip(link, self._samples[client] * self.timing.sample_ms * self._compute_pace[client], link)

    def end_round(self, replies_ms: list[float], *, missed: bool) -> float:
        """Move past a round whose replies came after so many ms; return how long it took."""
        waited = self.deadline_ms if missed else max(replies_ms, default=0.0)
        duration = waited + self.timing.aggregate_ms
        self.now_ms += duration
        return duration
