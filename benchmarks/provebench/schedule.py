"""Which federation is next, and what came of those before: in an order of which every beginning is a fair sample."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import say


@dataclass(frozen=True, eq=False)
class Part:
    """One part of the benchmark: `items` in random order, what makes an outcome of one, and the outcome's class."""

    name: str
    function: Callable[[Any], Any]
    items: Sequence[Any]
    outcome: type


def interleaved(parts: Sequence[Part]) -> list[tuple[Part, int]]:
    """All items of all parts, spread so that after any share of the whole about that share of each part is done."""
    places = [
        ((place + 0.5) / len(part.items), part.name, part, place) for part in parts for place in range(len(part.items))
    ]
    return [(part, place) for _, _, part, place in sorted(places, key=lambda one: one[:2])]


def played(parts: Sequence[Part], *, processes: int, limit_s: float, keep: Path | None) -> dict[str, list[Any]]:
    """The outcomes of each part; those that `keep` holds already are not made again, new ones are added to it."""
    found: dict[str, list[Any]] = {part.name: [] for part in parts}
    classes = {part.name: part.outcome for part in parts}
    done = set()
    for line in _kept(keep):
        if line["part"] in found:
            done.add((line["part"], line["place"]))
            found[line["part"]].append(classes[line["part"]](**line["outcome"]))
    if limit_s <= 0:
        return found
    work = [(part, place) for part, place in interleaved(parts) if (part.name, place) not in done]
    say(f"{len(work)} federations on {processes} processes, {len(done)} were played before")
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        jobs = ((part.name, place, part.function, part.items[place]) for part, place in work)
        for count, (name, place, outcome) in enumerate(pool.imap_unordered(_play, jobs), 1):
            found[name].append(outcome)
            if keep is not None:
                with open(keep, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"part": name, "place": place, "outcome": asdict(outcome)}) + "\n")
            spent = time.monotonic() - start
            if count % 20 == 0:
                say(f"{count} of {len(work)}, {spent:.0f} s, about {spent / count * len(work) - spent:.0f} s to go")
            if spent > limit_s:
                say(f"stopped after {count} of {len(work)}")
                pool.terminate()
                break
    return found


def _play(job: tuple[str, int, Callable[[Any], Any], Any]) -> tuple[str, int, Any]:
    name, place, function, item = job
    return name, place, function(item)


def _kept(keep: Path | None) -> Iterator[dict[str, Any]]:
    if keep is None or not keep.exists():
        return
    for line in keep.read_text(encoding="utf-8").splitlines():
        if line.endswith("}"):  # the last may have been cut off
            yield json.loads(line)
