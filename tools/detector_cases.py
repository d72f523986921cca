"""A hand-made window for each detector in which it finds its trouble: the examples of the docs, and of the tests.

A detector without a case here has a page without an example, and a house test fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from training_cases import TRAINING

from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.window import Window
from stethos.store.frame import Array, Frame
from stethos.testing import CLIENTS, ROUNDS, S_NS, T0_NS, client_rounds, frame_of

Columns = dict[str, list[Any]]


def turns(
    change: Callable[[str, int, dict[str, Any]], Mapping[str, Any]] | None = None,
    *,
    clients: Sequence[str] = CLIENTS,
    rounds: Sequence[int] = ROUNDS,
) -> Frame:
    """`client_rounds` of a healthy federation; `change(client, round, row)` gives what differs."""
    return frame_of(client_rounds(change, clients=clients, rounds=rounds))


def absent(status: str, error: str | None = None, *, since: int = 4, until: int = 99) -> Window:
    """Client c2 gives no update, with this status."""

    def change(client: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
        is_it = client == "c2" and since <= number <= until
        return (
            {**dict.fromkeys(row), "client": client, "round": number, "status": status, "error": error} if is_it else {}
        )

    return Window({"client_rounds": turns(change)})


def straggler() -> Window:
    return Window(
        {
            "client_rounds": turns(
                lambda client, number, row: (
                    {"duration_ms": 6000.0, "compute_ms": 5800.0} if client == "c3" and number >= 4 else {}
                )
            )
        }
    )


def ranks(slow_ms: float = 30.0) -> Window:
    """Two ranks; rank 1 needs longer for its data, and rank 0 waits for it in backward."""
    rows = []
    for step in range(60):
        for rank in (0, 1):
            late = slow_ms if rank == 1 else 0.0
            rows.append(
                {"rank": rank, "process": f"p{rank}", "step": step, "step_ms": 100.0 + slow_ms, "data_ms": 2.0 + late,
                 "forward_ms": 38.0, "backward_ms": 50.0 + slow_ms - late, "optimizer_ms": 10.0}
            )  # fmt: skip
    return Window({"steps": frame_of(rows)})


def unseen() -> Window:
    """Twenty turns of five steps on one model, each with an optimizer of its own, from a loss that falls."""
    rows = [
        {"process": "p0", "optimizer": turn + 1, "step": 5 * turn + place, "model": "Net",
         "loss": 2.3 * 0.96**turn - 0.02 * place}
        for turn in range(20)
        for place in range(5)
    ]  # fmt: skip
    return Window({"steps": frame_of(rows)})


def oversize() -> Window:
    return Window({"client_rounds": turns(lambda client, *_: {"raw_bytes": 12e6} if client == "c5" else {})})


def loader(data_ms: float = 60.0) -> Window:
    rows = [{"process": "p0", "rank": None, "step": step, "step_ms": 100.0, "data_ms": data_ms} for step in range(80)]
    return Window({"steps": frame_of(rows)})


def host(rss: Sequence[float] | Array, *, free: float = 8e9, is_live: bool = True, **more: float) -> Window:
    """Samples of one process, one a second, and a step with each."""
    used = np.asarray(rss) - rss[0]
    rows = [
        {"process": "p0", "t_ns": T0_NS + second * S_NS, "rss_bytes": value, "machine_free_bytes": free - used[second],
         "cpu_share": 1.0, "machine_cpu_share": 0.3, **more}
        for second, value in enumerate(rss)
    ]  # fmt: skip
    steps = [{"process": "p0", "t_ns": row["t_ns"], "step": place} for place, row in enumerate(rows)]
    return Window({"host": frame_of(rows), "steps": frame_of(steps)}, is_live=is_live)


def kept(rss: Sequence[float] | Array, *, step_bytes: float) -> Window:
    """A process with a list that keeps what each of its 200 steps made."""
    rows = [
        {"process": "p0", "step": step, "line": "train.py:9", "holder": "history (list) at train.py:17",
         "allocated_bytes": step_bytes}
        for step in range(0, 200, 11 if len(rss) > 5 else 199 // 5)
    ]  # fmt: skip
    rows.append({**rows[-1], "step": 199})
    sampled = host(rss)
    return Window({"host": sampled.frame("host"), "memory": frame_of(rows)}, is_live=True)


def gpu(allocated: Sequence[float] | Array, *, is_live: bool = True) -> Window:
    """A process whose tensors have so many bytes on a GPU of 80 GB, a step a second."""
    sampled = host([2e9] * len(allocated))
    rows = [
        {"process": "p0", "t_ns": T0_NS + second * S_NS, "used_bytes": 70e9, "total_bytes": 80e9}
        for second in range(len(allocated))
    ]
    steps = [
        {"process": "p0", "t_ns": T0_NS + second * S_NS, "allocated_bytes": value}
        for second, value in enumerate(allocated)
    ]
    frames = {"host": sampled.frame("host"), "gpu": frame_of(rows), "steps": frame_of(steps)}
    return Window(frames, is_live=is_live)


def hog() -> Window:
    return Window(
        {
            "client_rounds": turns(
                lambda client, number, row: {"peak_bytes": 4e9} if client == "c1" and number > 5 else {}
            )
        }
    )


def stalled(silent_s: int = 300, *, state: str = "running") -> Window:
    """Steps each second, then nothing while the machine is still being sampled."""
    times = [T0_NS + second * S_NS for second in range(100)]
    end_ns = times[-1] + silent_s * S_NS
    processes = frame_of([process(state=state, ended_ns=None if state == "running" else end_ns)])
    return Window(
        {
            "processes": processes,
            "steps": frame_of([{"process": "p0", "step": step, "t_ns": t_ns} for step, t_ns in enumerate(times)]),
            "host": frame_of([{"process": "p0", "t_ns": t_ns} for t_ns in (*times, end_ns)]),
        },
        is_live=state == "running",
    )


def process(**facts: Any) -> dict[str, Any]:
    """A row of `processes`."""
    row = {"process": "p0", "pid": 4242, "rank": None, "state": "ended", "ending": "ended", "exit_code": 0,
           "traceback": None, "steps": 1200, "ended_ns": T0_NS, "rows_produced": 10_000, "rows_dropped": 0,
           "rows_lost": 0, "drops": "{}"}  # fmt: skip
    return {**row, **facts}


def processes(*rows: Mapping[str, Any]) -> Window:
    return Window({"processes": frame_of(rows)})


def killed_for_memory() -> Window:
    rows = [
        {"process": "p0", "t_ns": T0_NS + second * S_NS, "rss_bytes": value, "machine_free_bytes": 31e9 - value}
        for second, value in enumerate(np.linspace(4e9, 30.8e9, 60))
    ]
    killed = process(state="failed", ending="killed by SIGKILL", exit_code=-9)
    return Window({"processes": frame_of([killed]), "host": frame_of(rows)})


def crashed() -> Window:
    trace = 'Traceback (most recent call last):\n  File "train.py", line 41, in <module>\nValueError: no samples'
    return processes(process(state="failed", ending="uncaught ValueError: no samples", exit_code=1, traceback=trace))


def labels(share: float = 1.0) -> Window:
    """Each client holds mostly one of six classes; `share` of its labels are of that class, the rest even."""

    def change(client: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
        own = np.full(6, (1 - share) * 100 / 6)
        own[CLIENTS.index(client)] += 100 * share
        return {"confusion": json.dumps(np.diag(own.round()).tolist())}

    return Window({"client_rounds": turns(change)})


def amounts(largest: int = 900) -> Window:
    return Window({"client_rounds": turns(lambda client, *_: {"samples": largest if client == "c4" else 100})})


def dominated(norm: float = 12.0, samples: int = 100) -> Window:
    """Client c1's update has this norm, those of the others 1."""
    rows = [
        {"client": client, "round": number, "layer": None, "norm": norm if client == "c1" else 1.0}
        for number in ROUNDS
        for client in CLIENTS
    ]
    table = turns(lambda client, *_: {"samples": samples if client == "c1" else 100})
    return Window({"client_rounds": table, "updates": frame_of(rows)})


def ruled(group: int = 3, norm: float = 30.0, clients: int = 20) -> Window:
    """So many of the clients have updates of this norm, the others of 1."""
    names = [f"c{number}" for number in range(clients)]
    rows = [
        {"client": client, "round": number, "layer": None, "norm": norm if place < group else 1.0}
        for number in ROUNDS
        for place, client in enumerate(names)
    ]
    return Window({"client_rounds": turns(clients=names), "updates": frame_of(rows)})


def changed(times: float = 6.0, since: int = 7) -> Window:
    """The incoming model's loss at client c5 is so many times the others' since a round."""
    return Window({
        "client_rounds": turns(
            lambda client, number, row: (
                {"entry_loss": row["entry_loss"] * times} if client == "c5" and number >= since else {}
            )
        )
    })  # fmt: skip


def repeated(second: float = 1.25, base: float = 3.0) -> Window:
    """Rounds 4 to 6 were run twice, from models of norm 3 and `base`; c2's update had norm 1.2, then `second`."""
    rows = [
        {"process": process, "client": client, "round": number, "layer": None, "federation": None,
         "norm": 1.2 if process == "p1" or client != "c2" else second, "base_norm": 3.0 if process == "p1" else base}
        for process, rounds in (("p1", range(1, 7)), ("p2", range(4, 11)))
        for number in rounds
        for client in CLIENTS
    ]  # fmt: skip
    return Window({"client_rounds": turns(), "updates": frame_of(rows)})


def broken_model(since: int = 6, senders: Sequence[str] = ("c2", "c4")) -> Window:
    """From a round on the global model is NaN; these clients sent NaN in it."""
    rounds = [
        {"round": number, "federation": None, "loss": float("nan") if number >= since else 1.0,
         "global_nan": 40 if number >= since else 0, "global_inf": 0}
        for number in ROUNDS
    ]  # fmt: skip
    updates = [
        {"client": client, "round": number, "layer": None, "federation": None,
         "nan": 40 if number > since or (number == since and client in senders) else 0, "inf": 0}
        for number in ROUNDS
        for client in CLIENTS
    ]  # fmt: skip
    return Window({"client_rounds": turns(), "rounds": frame_of(rounds), "updates": frame_of(updates)})


def unstable(growth: float = 1.4) -> Window:
    """Clients improve in each round, and each round begins worse than the one before."""

    def change(client: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
        loss = 0.5 * growth ** max(0, number - 4)
        return {"entry_loss": loss, "exit_loss": 0.8 * loss}

    rounds = frame_of([{"round": number, "federation": None, "drift": 0.3 * growth**number} for number in ROUNDS])
    return Window({"client_rounds": turns(change), "rounds": rounds})


def turned(turn: float = -1.0) -> Window:
    """Client c3 sends its update with the sign flipped from round 4 on, or shrunk."""
    return Window({"updates": _updates("c3", turn), "client_rounds": turns()})


def _updates(odd: str = "", turn: float = 1.0) -> Frame:
    """Fingerprints of clients that agree, but for one whose updates turn or shrink from round 4 on."""
    noise = np.random.default_rng(0).normal(0, 0.02, (len(ROUNDS), len(CLIENTS)))
    rows = []
    for place, number in enumerate(ROUNDS):
        for column, client in enumerate(CLIENTS):
            sign = turn if client == odd and number >= 4 else 1.0
            wobble = noise[place, column]
            rows.append(
                {"federation": "demo", "client": client, "round": number, "layer": None, "kind": "weight",
                 "norm": 1 + wobble,
                 "norm_ratio": 1 + wobble, "cos_centre": sign * (0.85 + wobble), "sign_agreement": 0.5 + sign * 0.3,
                 "cos_last": sign * 0.8, "cos_self": 0.9, "cos_back": -sign * 0.6, "back_rounds": 1, "nan": 0, "inf": 0,
                 "zero_share": 0.0, "input_cos": 0.9, "input_focus": 0.02, "input_tail": 0.1 * wobble,
                 "output_rows": None}
            )  # fmt: skip
    return frame_of(rows)


def paced(
    change: Callable[[str, int, dict[str, Any]], Mapping[str, Any]] | None = None, *, aggregate_ms: float = 20.0
) -> Window:
    """A federation whose clients work side by side; `change` as in `turns`."""
    table = turns(change)
    longest: dict[int, float] = {}
    for number, duration in zip(table["round"].tolist(), table["duration_ms"].tolist(), strict=True):
        longest[int(number)] = max(longest.get(int(number), 0.0), duration)
    rows = [
        {"round": number, "federation": None, "t_ns": T0_NS + number * S_NS, "wait_ms": 100.0,
         "duration_ms": longest[number] + aggregate_ms, "aggregate_ms": aggregate_ms, "evaluate_ms": None,
         "select_ms": None, "download_ms": None, "compute_ms": None, "upload_ms": None}
        for number in ROUNDS
    ]  # fmt: skip
    return Window({"client_rounds": table, "rounds": frame_of(rows)})


def linked(client: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
    """Links that take nine tenths of a turn."""
    return {"download_ms": 400.0, "upload_ms": 500.0, "compute_ms": row["duration_ms"] - 900}


def stepped(count: int = 200, **parts: Any) -> Window:
    """Steps of one process, or with `samples` as a list, of several ranks."""
    every = parts.pop("samples", 32)
    row = {"data_ms": 1.0, "forward_ms": 30.0, "backward_ms": 60.0, "optimizer_ms": 5.0, "step_ms": 100.0, **parts}
    ranks = every if isinstance(every, list) else [every]
    rows = [
        {"process": f"p{rank}", "rank": rank if len(ranks) > 1 else None, "step": step, "local_step": step,
         "samples": samples, **row}
        for step in range(count)
        for rank, samples in enumerate(ranks)
    ]  # fmt: skip
    return Window({"steps": frame_of(rows)})


def launching() -> Window:
    gpu = frame_of([{"device": 0, "busy_share": 0.2 + 0.01 * (second % 5)} for second in range(60)])
    steps = stepped(forward_ms=4.0, backward_ms=3.0, optimizer_ms=2.0, step_ms=10.0).frame("steps")
    return Window({"steps": steps, "gpu": gpu})


def deadlock() -> Window:
    """Rank 1 sleeps, and rank 0 waits for it in an all-reduce."""
    shared = {
        "hang": 1, "cause": "missing-rank", "group": "world", "seq": 207, "op": "all_reduce", "members": "[0, 1]",
        "missing": "[1]", "t_ns": T0_NS, "step": 100, "silent_s": 31.2, "limit_s": 30.0,
    }  # fmt: skip
    waits = "waits in all_reduce 207 of group world, in main (train.py:19)"
    rows = [
        {**shared, "role": "culprit", "process": "4712-1", "rank": 1, "place": "wait_for_file (train.py:23)",
         "words": "sleeps in wait_for_file (train.py:23)", "detail": '{"pid": 4712}'},
        {**shared, "role": "waiting", "process": "4711-1", "rank": 0, "place": "main (train.py:19)", "words": waits,
         "detail": '{"pid": 4711}'},
    ]  # fmt: skip
    running = [{"process": row["process"], "state": "running"} for row in rows]
    return Window({"hangs": frame_of(rows), "processes": frame_of(running)}, is_live=True)


SERVER, WORKER = "70-1", "71-1"


def legs(
    heard: Sequence[tuple[float, str, int]] = ((-90.0, "received", 2), (-88.0, "replied", 2)), *,
    stage: str = "waiting", asked_s: float | None = 40.0, silent_s: float = 2.0, busy: Sequence[str] = (),
    states: Mapping[str, str] | None = None, age_s: float = 40.0, is_live: bool = True,
) -> Window:  # fmt: skip
    """Round 3 of a federation; `heard` is what client c1 said: seconds from now, its leg, its round."""
    now = T0_NS + 1000 * S_NS
    waits = json.dumps({"open": [["c1", "train", "sent", asked_s]], "count": 1}) if asked_s is not None else None
    rows: list[dict[str, Any]] = [
        {"process": SERVER, "t_ns": now - silent_s * S_NS, "federation": "demo", "side": "server", "leg": stage,
         "work": None, "age_s": age_s, "words": waits, "client": None, "round": 3},
    ]  # fmt: skip
    rows += [
        {"process": WORKER, "t_ns": now + at_s * S_NS, "federation": "demo", "side": "client", "leg": leg,
         "work": "train", "age_s": 0.0, "words": None, "client": "c1", "round": number}
        for at_s, leg, number in heard
    ]  # fmt: skip
    host_rows = [
        {"process": process, "t_ns": now - second * S_NS, "cpu_share": 0.9 if process in busy else 0.001}
        for process in (SERVER, WORKER)
        for second in range(30)
    ]
    known = {SERVER: "running", WORKER: "running", **(states or {})}
    people = [
        {"process": one, "state": state, "pid": 70, "ending": "killed by SIGKILL"} for one, state in known.items()
    ]
    frames = {"legs": rows, "host": host_rows, "processes": people}
    return Window({name: frame_of(given) for name, given in frames.items()}, is_live=is_live)


def given_models(odd: Mapping[tuple[str, int], str] | None = None, clients: Sequence[str] = CLIENTS) -> Window:
    """The digests that clients make of what they received; `odd` by client and round."""
    odd = {("c2", 4): "f15e"} if odd is None else odd
    rows = [
        {"process": "1-1", "t_ns": T0_NS, "federation": "demo", "side": "client", "leg": "replied", "work": "train",
         "age_s": 1.0, "words": None, "client": client, "round": number,
         "digest": odd.get((client, number), f"a{number}")}
        for number in ROUNDS
        for client in clients
    ]  # fmt: skip
    return Window({"legs": frame_of(rows)})


def filtered() -> Window:
    """Client c3 sends 3 % of its weights, clipped; the others what they trained."""
    rows = []
    for number in ROUNDS:
        for place, client in enumerate(CLIENTS):
            facts: dict[str, Any] = {"way": 0.3 + 0.01 * place + 0.1 / number, "sent_sent": 1.0, "way_sent": 1.0}
            if client == "c3":
                facts |= {"sent_sent": 0.008, "way_sent": 0.05, "kept": 0.35}
            facts |= {"trained": 9000, "lr": 0.1, "setup": 1, "steps": 8}
            row = {"federation": "demo", "client": client, "round": number, "kind": "turn"}
            rows.append({**row, "value": json.dumps(facts)})
    return Window({"updates": _updates(), "client_rounds": turns(), "evidence": frame_of(rows)})


def summed(faulty: str = "c3") -> Window:
    """Sums over groups of three that change from round to round; one client does not send what it trained."""
    chance, rows = np.random.default_rng(0), []
    for number in ROUNDS:
        order = chance.permutation(len(CLIENTS))
        for part in np.array_split(order, max(len(CLIENTS) // 3, 2)):
            names = [CLIENTS[place] for place in part]
            sent = sum(-1.0 if name == faulty else 1.0 for name in names)
            sums = {"log_norm": float(chance.normal(0, 0.1)), "log_sent": 0.0, "cos_sent": sent}
            rows.append({"federation": "demo", "client": None, "round": number, "clients": json.dumps(names),
                         "sums": json.dumps(sums)})  # fmt: skip
    return Window({"group_sums": frame_of(rows)})


def corrupted() -> Window:
    """Of forty steps that two ranks repeat, one of rank 1 differs in one of five executions."""
    equal = {"outcome": "equal", "executions": 2, "compared": 24}
    odd = {
        "outcome": "corrupt", "kind": "gradient", "layer": "body.2.weight", "where": "training", "executions": 5,
        "compared": 24,
    }  # fmt: skip
    rows = [
        {"process": f"471{rank}-1", "rank": rank, "client": None, "step": step, "phase": "repeated",
         "detail": json.dumps(odd if (rank, step) == (1, 1200) else equal)}
        for step in range(100, 2100, 100)
        for rank in (0, 1)
    ]  # fmt: skip
    return Window({"inspections": frame_of(rows)})


CASES: dict[str, Callable[[], Window]] = {
    "PRF001": lambda: stepped(forward_ms=30.0, backward_ms=64.0),
    "PRF002": lambda: paced(linked),
    "PRF003": lambda: paced(aggregate_ms=900.0),
    "PRF004": lambda: paced(
        lambda client, number, row: (
            {"duration_ms": row["duration_ms"] + 700, "upload_ms": row["upload_ms"] + 700} if client == "c3" else {}
        )
    ),
    "PRF005": lambda: stepped(forward_ms=0.4, backward_ms=0.5, optimizer_ms=0.9, step_ms=2.0, data_ms=0.1, samples=2),
    "PRF006": launching,
    "PRF007": lambda: stepped(samples=[32, 64]),
    "FED001": turned,
    "FED010": labels,
    "FED011": amounts,
    "FED012": dominated,
    "FED013": unstable,
    "FED014": changed,
    "FED015": repeated,
    "FED016": broken_model,
    "FED017": legs,
    "FED018": given_models,
    "FED019": filtered,
    "FED020": unseen,
    "FED021": summed,
    "FED022": lambda: turned(0.0),
    "SYS001": straggler,
    "SYS002": ranks,
    "SYS007": oversize,
    "SYS008": loader,
    "SYS009": lambda: host(np.linspace(2e9, 6e9, 300), free=40e9),
    "SYS010": lambda: host(np.linspace(2e9, 6e9, 300), free=8e9),
    "SYS011": hog,
    "SYS012": stalled,
    "SYS013": crashed,
    "SYS014": lambda: host([2e9] * 90, cpu_share=0.08),
    "SYS015": lambda: processes(process(rows_dropped=700, rows_lost=12, drops='{"ring_full": 700}')),
    "SYS016": deadlock,
    "SYS018": killed_for_memory,
    "SYS019": corrupted,
    "SYS017": lambda: absent("timeout", "no reply within 30 s"),
    **{detector.code: TRAINING[detector.name] for detector in DETECTORS.values() if detector.name in TRAINING},
}
