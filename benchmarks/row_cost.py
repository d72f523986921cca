"""In a fresh process: what a row costs the trainer and the drainer, by the way it comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import job_of_child, leave_result
from benchmarks.made_run import MadeRun, layer_vector
from stethos.schema import LAYERS

_BURST = 2_500
_WARM_UP = 60_000  # rows after which every page of the ring has been written once
_BATCHES = (2_500, 10_000)


def main() -> None:
    path, job = job_of_child()
    directory, rounds = Path(job["directory"]), job["rounds"]
    result: dict[str, Any] = {"ring": _through_ring(directory, rounds), "session": _through_session(directory, rounds)}
    leave_result(path, result)


def _through_ring(directory: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Ring and collector in this process. Sealing is timed apart: it comes once per segment."""
    run = MadeRun(directory / "made")
    writers = {
        "metrics": run.metric_writer(),
        "steps": run.step_writer(),
        "layers, vectors of 60": run.layer_writer(60),
        "layers, vectors of 1,000": run.layer_writer(1_000),
    }
    run.drain()
    costs = {}
    for name, write in writers.items():
        cost: dict[str, float] = {}
        put_ns: list[float] = []
        for _ in range(_WARM_UP // 10_000):
            write(10_000)
            run.collector.drain()
        for batch in _BATCHES:
            drain_ns = []
            rows = batch - batch % 60 if "60" in name else batch
            rows -= rows % 1_000 if "1,000" in name else 0
            for _ in range(rounds):
                put_ns.append(_timed(lambda: write(rows), time.thread_time_ns) / rows)  # noqa: B023
                drain_ns.append(_timed(run.collector.drain, time.process_time_ns) / rows)
            cost[f"drain_{batch}_ns"] = median(drain_ns)
        cost["put_ns"] = median(put_ns)
        before = run.collector.written
        run.collector.seal()
        sealed_from = run.collector.written
        while not run.collector.wants_seal:
            write(10_000)
            run.collector.drain()
        cost["seal_ns"] = _timed(run.collector.seal, time.process_time_ns) / (run.collector.written - sealed_from)
        assert before == sealed_from
        costs[name] = cost
    run.close()
    return costs


def _through_session(directory: Path, rounds: int) -> dict[str, float]:
    """As user code and our own samplers write, with a real drainer beside."""
    import stethos
    from stethos.observe import boot

    stethos.watch(name="watched", dir=directory)
    session = boot.current_session()
    assert session is not None and session.ring is not None
    ring, log = session.ring, stethos.log
    vectors = {rows: layer_vector(rows, session.name_id) for rows in (60, 1_000)}

    def put_metrics() -> None:
        for _ in range(_BURST):
            session.put_metric("loss", 1.5)

    def log_values() -> None:
        for _ in range(_BURST):
            log(loss=1.5)

    def put_layers(rows: int) -> Callable[[], None]:
        names, numbers = vectors[rows]

        def put() -> None:
            for _ in range(_BURST // rows):
                session.put_frame(LAYERS.number, names, numbers, rows=rows, optimizer=1)

        return put

    ways: dict[str, tuple[Callable[[], None], int]] = {
        "Session.put_metric": (put_metrics, _BURST),
        "stethos.log": (log_values, _BURST),
        "layers, vectors of 60": (put_layers(60), _BURST // 60 * 60),
        "layers, vectors of 1,000": (put_layers(1_000), _BURST // 1_000 * 1_000),
    }
    costs = {}
    for name, (put, rows) in ways.items():
        times = []
        for _ in range(_WARM_UP // _BURST + rounds):
            times.append(_timed(put, time.thread_time_ns) / rows)
            while ring.has_backlog():
                time.sleep(0.01)
            time.sleep(0.03)
        costs[name] = median(times[-rounds:])
    assert not any(ring.dropped().values()), f"rows were dropped, which is cheaper than writing them: {ring.dropped()}"
    return costs


def _timed(action: Callable[[], object], clock: Callable[[], int]) -> int:
    start = clock()
    action()
    return clock() - start


if __name__ == "__main__":
    main()
