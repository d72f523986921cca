"""FED017: a federation that stands still, with the leg of the round that does not come to its end."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.federated.app_start import never_started
from stethos.diagnose.federated.site_clock import REMOTE, clock_shifts, clock_words, is_remote, now_of, shifted
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import listed
from stethos.diagnose.window import Window
from stethos.store.frame import Frame
from stethos.store.literal import literal

_NEXT = {
    "never-started": "look at the log of {client}: its app has not started, or does not reach the server",
    "select": "start the clients that are missing, or lower the number that the strategy waits for",
    "download": "see whether {client} is connected, and look at its log; a message that was lost does not come again",
    "compute": "look at the client's stack at its own place: `stethos all backtrace`",
    "upload": "look at the way back from {client}: its log, the size of the answer, limits of proxies between",
    "server": "look at the server's stack: `stethos {pid} backtrace`; its log says what it did last",
    "aggregate": "look at the server's stack: `stethos {pid} backtrace`",
    "evaluate": "look at the server's stack: `stethos {pid} backtrace`",
}
_BASELINE = {"download": "download_ms", "compute": "compute_ms", "upload": "upload_ms"}
_RECENT_S = 12.0
_SILENT_S = 12.0  # a server speaks every five seconds
_MISSED_S = 8.0
_CLOCKS_NS = 1e9  # by which a server has to speak after an answer that it does not have


@dataclass(frozen=True, slots=True)
class StalledFederation:
    """A federated round stands still: the leg, the client, and what each side did last are named.

    What it looks at: the signs of life in `legs`, the processes and their use of the processor. A leg is a part of a
    round: choosing clients, sending to a client, its work, sending back, and the server's own work. It stands still if
    it has taken `at_least_s` and `times` its longest time in earlier rounds, and no process involved computes or makes
    steps. A server or client that died, or whose program ended before the first round, is named at once; a client of
    which nothing was ever heard after twice that time, as it may be starting.

    Why it matters: one lost message or one frozen client stops a round forever, and from outside the round just looks
    slow.

    Not a fault when: the client waits on purpose for longer than that without computing. Raise `at_least_s`. If a
    client sends nothing while it works, only the whole trip, out and back, is known.

    Next step: look at the side that is named: its process, its stack, its log.
    """

    code: ClassVar[str] = "FED017"
    name: ClassVar[str] = "federation-stalled"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "state"})}
    reads: ClassVar[Needs] = {
        "processes": frozenset({"pid", "ended_ns", "ending", "command", "traceback", "exit_code"}),
        "legs": frozenset(
            {"process", "t_ns", "federation", "side", "leg", "work", "age_s", "words", "client", "round"}
        ),
        "host": frozenset({"process", "t_ns", "cpu_share"}),
        "steps": frozenset({"process", "t_ns", "client"}),
        "client_rounds": frozenset({"client", "round", "duration_ms", *_BASELINE.values()}),
        "rounds": frozenset({"round", "federation", "aggregate_ms", "evaluate_ms", "select_ms"}),
        "logs": frozenset({"process", "t_ns", "logger", "level", "message", "exception"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset(
        {"stalled-process", "low-utilisation", "process-failure", "hang", "straggler"}
    )

    at_least_s: float = threshold(22.0, "seconds of silence")
    times: float = threshold(2.0, "times the longest that this leg of a round took so far")
    idle_share: float = threshold(0.02, "share of a core below which a process is idle")

    def check(self, window: Window) -> Iterator[Finding]:
        legs = window.frame("legs")
        if not len(legs) and not window.is_federated:
            yield from never_started(window, self.code, self.name, self.severity)
            return
        if not len(legs):
            return
        signs = _Signs(window, self.idle_share)
        for federation, rows in signs.legs.groups("federation").items():
            is_server = (rows["side"] == "server") & ~is_remote(rows["process"])
            if is_server.any():
                yield from self._judge(str(federation), rows, rows.where(is_server).sorted_by("t_ns"), signs, window)

    def _judge(self, federation: str, rows: Frame, server: Frame, signs: _Signs, window: Window) -> Iterator[Finding]:
        last = _Row(server, -1)
        process, now_ns = str(last["process"]), signs.now_ns
        number, stage = int(last["round"]), str(last["leg"])
        if stage == "closed":
            return
        waiting = _waiting(last, now_ns)
        case = _Case(self, federation, number, last, signs, window.is_live)
        silent_s = (now_ns - float(last["t_ns"])) * 1e-9
        if signs.died(process):
            if not signs.was_stopped(process):
                words = f"the server died in round {number}: {signs.ending(process)}"
                yield case.finding("server", (), words, case.last_signs(waiting, rows), 1.0)
            return
        if window.is_live and silent_s > max(self.at_least_s, _SILENT_S):
            words = f"the server gives no sign of life for {silent_s:,.0f} s, in round {number} ({_doing(stage)})"
            yield case.finding("server", (), words, case.last_signs(waiting, rows), 0.95)
            return
        if window.is_live and silent_s > _MISSED_S:  # whether the server still waits is not known
            return
        mine = rows.where((rows["side"] == "client") & (rows["round"] == number))
        if stage == "waiting" and waiting:
            yield from self._clients(case, waiting, mine, rows, window)
            return
        age_s = float(last["age_s"]) + silent_s
        if stage == "waiting" and age_s > 2 * self.at_least_s and (absent := _never_came(last)):
            who = f"client {absent[0]} has" if len(absent) == 1 else f"clients {listed(absent)} have"
            words = f"round {number} stands still: {who} never fetched a task for {age_s:,.0f} s"
            yield case.finding("never-started", absent, words, case.last_signs(waiting, rows), 0.85)
            return
        usual_s = _longest(window.frame("rounds"), f"{stage}_ms")
        if age_s <= max(self.at_least_s, self.times * usual_s) or signs.is_busy(process):
            return
        if stage == "select":
            said = signs.said_waiting()
            yield case.finding("select", (), f"round {number} waits for clients since {age_s:,.0f} s{said}", [], 0.9)
        elif any(signs.is_busy(other) for other in signs.unknown(rows, process)):
            return
        elif stage in ("aggregate", "evaluate"):
            words = (
                f"the server stands still in round {number}: it {_doing(stage)} for {age_s:,.0f} s without computing"
            )
            yield case.finding(stage, (), words, case.last_signs(waiting, rows), 0.9)
        else:
            when = f"after round {number}" if stage == "between" else f"in round {number}, with no client asked"
            words = f"the server stands still {when}: nothing has happened for {age_s:,.0f} s and it does not compute"
            yield case.finding("server", (), words, case.last_signs(waiting, rows), 0.8)

    def _clients(
        self, case: _Case, waiting: Sequence[_Wait], mine: Frame, rows: Frame, window: Window
    ) -> Iterator[Finding]:
        """Who of those that have not answered stands still, and where."""
        baseline = {leg: _longest(window.frame("client_rounds"), column) for leg, column in _BASELINE.items()}
        whole_s = _longest(window.frame("client_rounds"), "duration_ms") + baseline["download"] + baseline["upload"]
        found: dict[str, list[tuple[str, str, float]]] = {}
        for wait in waiting:
            told = case.leg_of(wait, mine, baseline, whole_s, rows)
            if told is not None:
                leg, words, confidence = told
                found.setdefault(leg, []).append((wait.client, words, confidence))
        for leg, ones in found.items():
            clients = tuple(client for client, _, _ in ones)
            more = f"; the same of {listed(clients[1:])}" if len(ones) > 1 else ""
            words = f"round {case.number} stands still: {ones[0][1]}{more}"
            wanted = [wait for wait in waiting if wait.client in clients]
            yield case.finding(leg, clients, words, case.last_signs(wanted, rows), min(one[2] for one in ones))


@dataclass(frozen=True, slots=True)
class _Wait:
    """A client that has not answered, as its server sees it."""

    client: str
    work: str
    leg: str  # sent, or turn: it works in the server's own process
    age_s: float


class _Case:
    """One federation at one moment."""

    def __init__(
        self, detector: StalledFederation, federation: str, number: int, server: _Row, signs: _Signs, is_live: bool
    ) -> None:
        self.number = number
        self._detector = detector
        self._federation = federation
        self._server = str(server["process"])
        self._spoke_ns = float(server["t_ns"])
        self._signs = signs
        self._is_live = is_live

    def leg_of(
        self, wait: _Wait, mine: Frame, baseline: dict[str, float], whole_s: float, rows: Frame
    ) -> tuple[str, str, float] | None:
        """The leg on which this client stands still, in words and how sure; None if it gets on or may do so."""
        at_least_s, times, signs = self._detector.at_least_s, self._detector.times, self._signs
        who, whose = f"client {wait.client}", _client_rows(mine, wait)
        if wait.leg == "turn":  # in the server's own process
            quiet_s = min(wait.age_s, signs.since_step(wait.client, None))
            if quiet_s <= max(at_least_s, baseline["compute"] * times) or signs.is_busy(self._server):
                return None
            return "compute", f"the turn of {who} began {wait.age_s:,.0f} s ago and computes nothing", 0.85
        if not len(whose):
            known = _client_rows(rows, wait, any_round=True)
            is_away = bool(len(known)) and bool(is_remote(known["process"]).any())
            usual_s = times * (whole_s if is_away else baseline["download"])
            if is_away or not len(known):  # it may be starting, where nobody sees it
                at_least_s *= 2
            if wait.age_s <= max(at_least_s, usual_s) or signs.anybody_starts(self._server):
                return None
            last = _Row(known.sorted_by("t_ns"), -1) if len(known) else None
            seen = (
                f"its last sign of life is {signs.ago(float(last['t_ns']))} old (round {int(last['round'])})"
                if last is not None
                else "it has given no sign of life so far"
            )
            return "download", f"a message left for {who} {wait.age_s:,.0f} s ago and was not received; {seen}", 0.85
        last = _Row(whose.sorted_by("t_ns"), -1)
        process, t_ns = str(last["process"]), float(last["t_ns"])
        if last["leg"] == "replied":
            since_s = (signs.now_ns - t_ns) * 1e-9
            has_spoken = self._spoke_ns > t_ns + _CLOCKS_NS  # else it may be the server that stands still
            if since_s <= max(at_least_s, baseline["upload"] * times) or not has_spoken:
                return None
            return "upload", f"{who} answered {since_s:,.0f} s ago and its answer has not arrived", 0.9
        if signs.died(process):
            return "compute", f"the process of {who} died at work: {signs.ending(process)}", 0.95
        begun_ns = (
            float(whose["t_ns"][whose["leg"] == "received"].min()) if (whose["leg"] == "received").any() else t_ns
        )
        age_s = (signs.now_ns - begun_ns) * 1e-9
        quiet_s = min(age_s, signs.since_step(wait.client, process))
        strangers = [one for one in signs.unknown(rows, self._server) if one != process]
        if quiet_s <= max(at_least_s, 1.5 * baseline["compute"]) or any(map(signs.is_busy, (process, *strangers))):
            return None
        mute_s = (signs.now_ns - t_ns) * 1e-9
        frozen = f", and its process gives no sign of life for {mute_s:,.0f} s" if mute_s > at_least_s / 2 else ""
        return "compute", f"{who} has the model since {age_s:,.0f} s and computes nothing{frozen}", 0.9

    def last_signs(self, waiting: Sequence[_Wait], rows: Frame) -> list[Evidence]:
        """What each side did last."""
        told: dict[str, str] = {}
        for wait in waiting[:3]:
            known = _client_rows(rows, wait, any_round=True)
            if not len(known):
                told[wait.client] = f"of client {wait.client} nothing was heard; it was asked {wait.age_s:,.0f} s ago"
                continue
            last = _Row(known.sorted_by("t_ns"), -1)
            ago = self._signs.ago(float(last["t_ns"]))
            off = clock_words(self._signs.shifts, str(last["process"]))
            told[wait.client] = f"client {wait.client}: {last['leg']} in round {int(last['round'])}, {ago} ago{off}"
        shown = "SELECT t_ns, round, leg, age_s FROM legs WHERE client = {} ORDER BY t_ns DESC LIMIT 10"
        return [Evidence(words, shown.format(literal(client))) for client, words in told.items()]

    def finding(
        self, leg: str, clients: tuple[str, ...], title: str, more: Sequence[Evidence], confidence: float
    ) -> Finding:
        """The finding; `leg` is its kind."""
        pid = self._signs.pid(self._server)
        where = f"federation = {literal(self._federation)}"
        shown = Evidence(
            f"the server did last: {self._signs.last_leg(self._server)}",
            f"SELECT t_ns, side, client, round, leg, age_s, words FROM legs WHERE {where} ORDER BY t_ns DESC LIMIT 30",
        )
        advice = _NEXT[leg].format(client=listed(clients) or "the client", pid=pid or "PID")
        return Finding(
            self._detector.code, self._detector.name, leg, self._detector.severity, title,
            Subject(clients=clients, process=self._server if not clients else None, first=self.number, unit="round"),
            confidence=confidence, evidence=(shown, *more), next_step=advice,
            detail={"leg": leg, "round": self.number, "clients": list(clients)}, is_open=True,
        )  # fmt: skip


class _Signs:
    """What shows that a process lives and works, up to the newest row of the run."""

    def __init__(self, window: Window, idle_share: float) -> None:
        self._idle_share = idle_share
        legs, host, steps = (window.frame(name) for name in ("legs", "host", "steps"))
        self.now_ns = now_of(legs, host, steps)
        self.shifts = clock_shifts(legs, self.now_ns)
        self.legs, self._host, self._steps = (shifted(one, self.shifts) for one in (legs, host, steps))
        self._logs = window.frame("logs")
        processes = window.frame("processes")
        self._processes = {str(processes["process"][place]): _Row(processes, place) for place in range(len(processes))}

    def ago(self, t_ns: float) -> str:
        return f"{(self.now_ns - t_ns) * 1e-9:,.0f} s"

    def died(self, process: str) -> bool:
        row = self._processes.get(process)
        return row is not None and row["state"] in ("killed", "failed")

    def was_stopped(self, process: str) -> bool:
        return any(word in self.ending(process) for word in ("SIGINT", "SIGTERM", "KeyboardInterrupt"))

    def ending(self, process: str) -> str:
        row = self._processes.get(process)
        return str(row["ending"] or row["state"]) if row is not None else "unknown"

    def pid(self, process: str) -> int | None:
        row = self._processes.get(process)
        value = row["pid"] if row is not None else None
        return int(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def is_busy(self, process: str) -> bool:
        """Whether a process has computed lately, as seen from outside; one that nobody looks at may have."""
        if not len(self._host):
            return True
        old_s = 40.0 if REMOTE in process else _RECENT_S
        mine = (self._host["process"] == process) & (self._host["t_ns"] > self.now_ns - old_s * 1e9)
        shares = self._host["cpu_share"][mine]
        known = shares[np.isfinite(shares)] if shares.dtype.kind == "f" else np.array([])
        row = self._processes.get(process)
        if not len(known):
            return row is not None and row["state"] == "running" and REMOTE in process
        return float(np.mean(known)) >= self._idle_share

    def unknown(self, rows: Frame, server: str) -> list[str]:
        """Running processes that are neither the server nor known as a client's: they may work for one."""
        named = set(rows["process"].tolist())
        return [
            one
            for one, row in self._processes.items()
            if one != server and one not in named and row["state"] == "running"
        ]

    def anybody_starts(self, server: str) -> bool:
        return any(self.is_busy(one) for one in self.unknown(self.legs, server))

    def since_step(self, client: str, process: str | None) -> float:
        """Seconds since a client's last step; infinite if it made none."""
        if not len(self._steps) or "client" not in self._steps:
            return math.inf
        mine = self._steps["client"] == client
        if process is not None:
            mine |= self._steps["process"] == process
        times = self._steps["t_ns"][mine]
        return (self.now_ns - float(times.max())) * 1e-9 if len(times) else math.inf

    def last_leg(self, process: str) -> str:
        mine = self.legs.where(self.legs["process"] == process).sorted_by("t_ns")
        last = _Row(mine, -1)
        return f"{last['leg']} in round {int(last['round'])}, {self.ago(float(last['t_ns']))} ago"

    def said_waiting(self) -> str:
        """What an adapter has said of a server that waits for clients."""
        if not len(self._logs) or "message" not in self._logs:
            return ""
        said = [
            str(text) for text in self._logs["message"].tolist() if "waits" in str(text) and "connected" in str(text)
        ]
        return f" ({said[-1].partition(': ')[2]})" if said else ""


class _Row:
    """One row of a frame; NULL is None."""

    def __init__(self, frame: Frame, place: int) -> None:
        self._frame = frame
        self._place = place

    def __getitem__(self, name: str) -> Any:
        value = self._frame[name][self._place] if name in self._frame else None
        return None if value is None or value != value else value


def _waiting(server: _Row, now_ns: float) -> list[_Wait]:
    """Who had not answered at the server's last word, with the time since."""
    try:
        told = json.loads(str(server["words"] or "{}")).get("open", [])
        later_s = (now_ns - float(server["t_ns"])) * 1e-9
        return [_Wait(str(who), str(work), str(leg), float(age_s) + later_s) for who, work, leg, age_s in told]
    except (ValueError, TypeError, AttributeError):  # by another version
        return []


def _never_came(server: _Row) -> tuple[str, ...]:
    """Clients that were to fetch a message and have never done so."""
    try:
        return tuple(map(str, json.loads(str(server["words"] or "{}")).get("never_came", [])))
    except (ValueError, TypeError, AttributeError):
        return ()


def _client_rows(rows: Frame, wait: _Wait, *, any_round: bool = False) -> Frame:
    is_it = (rows["client"] == wait.client) & (rows["side"] == "client")
    if not any_round and "work" in rows:
        is_it &= rows["work"] == wait.work
    return rows.where(np.asarray(is_it, bool))


def _longest(frame: Frame, column: str) -> float:
    """The longest time of a column so far, in seconds; 0 without any."""
    if not len(frame) or column not in frame or frame[column].dtype.kind != "f":
        return 0.0
    known = frame[column][np.isfinite(frame[column])]
    return float(known.max()) * 1e-3 if len(known) else 0.0


def _doing(stage: str) -> str:
    return {"select": "chooses clients", "waiting": "waits for clients", "aggregate": "aggregates",
            "evaluate": "evaluates"}.get(stage, "is between rounds")  # fmt: skip
