"""What will become of each client in a round, and when: known before anybody trains, as the clock is virtual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stethos.lab.clock import Slowdown, Trip, VirtualClock
from stethos.lab.fault import Fault
from stethos.lab.seed import generator

Status = Literal["ok", "failed", "dropped", "timeout"]


@dataclass(frozen=True, slots=True)
class ClientOutcome:
    """One client in one round; `trip` and `wait_ms` are those of a reply that came in time."""

    client: int
    status: Status
    trip: Trip | None = None
    wait_ms: float | None = None


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """The whole round: `wait_ms` passes between the first reply and the last."""

    clients: tuple[ClientOutcome, ...]
    duration_ms: float
    wait_ms: float | None


def round_outcome(
    clock: VirtualClock, faults: Sequence[Fault], clients: Sequence[int], number: int, seed: int
) -> RoundOutcome:
    """Decide who replies, when, and how long the round lasts; the clock moves to its end."""
    statuses: dict[int, Status] = {}
    trips: dict[int, Trip] = {}
    replies: list[float] = []
    for client in clients:
        active = [(place, fault) for place, fault in enumerate(faults) if fault.is_active(f"c{client}", number)]
        trip = clock.trip(client, number, _slowdown([fault for _, fault in active]))
        failing = [
            fault.kind
            for place, fault in active
            if fault.acts_on == "reply" and generator(seed, "reply", place, client, number).random() < fault.strength
        ]
        if "dropout" in failing:
            statuses[client] = "dropped"
        elif "timeout" in failing or trip.total_ms > clock.deadline_ms:
            statuses[client] = "timeout"
        elif "crash" in failing:
            statuses[client] = "failed"
            replies.append(trip.download_ms + trip.compute_ms / 2)
        else:
            statuses[client] = "ok"
            trips[client] = trip
            replies.append(trip.total_ms)
    arrivals = [trip.total_ms for trip in trips.values()]
    last = max(arrivals, default=0.0)
    return RoundOutcome(
        tuple(
            ClientOutcome(client, status, trips[client], last - trips[client].total_ms)
            if client in trips
            else ClientOutcome(client, status)
            for client, status in statuses.items()
        ),
        clock.end_round(replies, missed="timeout" in statuses.values()),
        last - min(arrivals) if arrivals else None,
    )


def _slowdown(faults: Sequence[Fault]) -> Slowdown:
    compute = link = 1.0
    for fault in faults:
        if fault.kind == "slow-compute":
            compute *= fault.strength
        elif fault.kind == "slow-link":
            link *= fault.strength
    return Slowdown(compute, link)
