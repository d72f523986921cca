"""A federation whose client's clock is off is judged as if it were right."""

from __future__ import annotations

from typing import Any

import pytest
from examining import found

from stethos.diagnose.federated.site_clock import clock_shifts
from stethos.diagnose.window import Window
from stethos.testing import S_NS, T0_NS, frame_of

DAY_S, NOW = 86_400.0, T0_NS + 1000 * S_NS
SERVER, SITE = "70-1", "hospital@71-1"
OFF = (0.0, 1.0, -1.0, 40.0, -40.0, DAY_S, -DAY_S)


def row(process: str, at_s: float, side: str, leg: str, number: int, words: str | None = None) -> dict[str, Any]:
    return {
        "process": process, "t_ns": NOW + at_s * S_NS, "federation": "demo", "side": side, "leg": leg, "round": number,
        "work": "train", "age_s": 1.0, "words": words, "client": "c1" if side == "client" else None,
    }  # fmt: skip


def federation(off_s: float, *, frozen_for_s: float = 0.0) -> Window:
    """Three rounds of a minute, the last one open; the client's clock is so much ahead, and it may have frozen."""
    rows = []
    for at_s in range(-180, 0, 5):
        number = 4 + (at_s // 60)
        waits = f'{{"open": [["c1", "train", "sent", {at_s + 60 * (4 - number)}]], "count": 1}}'
        rows.append(row(SERVER, at_s, "server", "waiting", number, waits))
    for at_s in range(-179, -int(frozen_for_s), 5):
        number = 4 + (at_s // 60)
        leg = {1: "received", 56: "replied"}.get(at_s % 60, "computing")
        rows.append(row(SITE, at_s + off_s, "client", leg, number))
    busy = {SERVER: 0.001, SITE: 0.001 if frozen_for_s else 0.9}
    host = [
        {"process": one, "t_ns": NOW + (second + off_s * (one == SITE)) * S_NS, "cpu_share": share}
        for one, share in busy.items()
        for second in range(-100, 0)
    ]
    people = [{"process": one, "state": "running", "pid": 70, "ending": None} for one in busy]
    frames = {"legs": rows, "host": host, "processes": people}
    return Window({name: frame_of(given) for name, given in frames.items()}, is_live=True)


@pytest.mark.parametrize("off_s", OFF)
def test_a_client_at_work_is_not_accused_whatever_its_clock_says(off_s: float) -> None:
    assert not found("FED017", federation(off_s))


@pytest.mark.parametrize("off_s", [one for one in OFF if one != 40.0])  # so far ahead it is named 40 s later
def test_a_frozen_client_is_named_whatever_its_clock_says(off_s: float) -> None:
    (finding,) = found("FED017", federation(off_s, frozen_for_s=45.0))
    assert finding.kind == "compute" and finding.subject.clients == ("c1",)
    told = any("its clock is about" in one.text for one in finding.evidence)
    assert told == (abs(off_s) > 10)


@pytest.mark.parametrize("off_s", OFF)
def test_a_clock_is_moved_by_as_much_as_it_is_off(off_s: float) -> None:
    window = federation(off_s)
    shift_s = clock_shifts(window.frame("legs"), NOW).get("hospital", 0.0) / S_NS
    assert abs(shift_s + off_s) <= 6 if abs(off_s) > 10 else shift_s == 0


def test_one_site_moves_the_times_of_no_other() -> None:
    window = federation(0.0)
    legs = window.frame("legs")
    rows = [{name: legs[name][place] for name in legs.names} for place in range(len(legs))]
    rows.append({**row("evil@1-1", 9e6, "client", "received", 1), "client": "evil"})
    frames = {name: window.frame(name) for name in ("host", "processes")}
    assert not found("FED017", Window({**frames, "legs": frame_of(rows)}, is_live=True))
    assert set(clock_shifts(frame_of(rows), NOW)) == {"evil"}
