"""In a fresh process: a live federated run of many rounds, clients and layers; told to, it writes one more round."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.child import job_of_child, leave_result
from benchmarks.made_run import MadeRun
from stethos.schema import CLIENT_REPORTS, NULL_F64, ROUNDS, UPDATES, Kind, Table

_VECTOR = 200
_ROWS_PER_DRAIN = 20_000
_CLIENTS_PER_DRAIN = 1_000
_DRAIN_S = 0.5  # the longest that a drainer leaves a row in the ring
_ODD_CLIENT, _ODD_FROM = 42, 30  # one client turns away
_T0_NS = 1_700_000_000_000_000_000
_LAYERS = ("conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight")


class Federated:
    """Writes rounds with all their clients and updates, as a federation does."""

    def __init__(self, run: MadeRun, clients: int, layers: int) -> None:
        self._run = run
        self._layers = (None, *_LAYERS[:layers])
        self._clients = [f"client-{number:03d}" for number in range(clients)]
        self._draw = np.random.default_rng(1)

    def round(self, number: int, t_ns: int) -> None:
        self._put(
            ROUNDS,
            number,
            t_ns,
            None,
            {"federation": "wide"},
            {
                "selected": len(self._clients),
                "loss": 2 / number,
                "accuracy": 1 - 1 / (1 + number),
                "duration_ms": 900.0,
                "aggregate_ms": 40.0,
            },
        )
        for place, client in enumerate(self._clients):
            if place % _CLIENTS_PER_DRAIN == _CLIENTS_PER_DRAIN - 1:
                self._run.drain()
            compute_ms, norm = float(self._draw.lognormal(6, 0.3)), float(self._draw.lognormal(0, 0.2))
            is_odd = place == _ODD_CLIENT and number >= _ODD_FROM
            cosine = float(self._draw.normal(-0.3 if is_odd else 0.6, 0.05))
            names = {"federation": "wide", "side": "server", "status": "ok"}
            self._put(
                CLIENT_REPORTS,
                number,
                t_ns,
                client,
                names,
                {
                    "turn": 0,
                    "samples": 500,
                    "loss": 2 / number,
                    "entry_loss": (4.0 if is_odd else 2.1) / number,
                    "duration_ms": compute_ms + 100,
                    "download_ms": 50.0,
                    "compute_ms": compute_ms,
                    "upload_ms": 50.0,
                    "sent_bytes": 4e6,
                    "received_bytes": 4e6,
                    "peak_bytes": 2e8,
                },
            )
            for layer in self._layers:
                names = {"federation": "wide", "kind": "weight"} | ({} if layer is None else {"layer": layer})
                self._put(
                    UPDATES,
                    number,
                    t_ns,
                    client,
                    names,
                    {"norm": norm, "base_norm": 30.0, "norm_ratio": norm, "cos_centre": cosine, "nan": 0, "inf": 0},
                )

    def _put(
        self, table: Table, number: int, t_ns: int, client: str | None, names: dict[str, str], numbers: dict[str, float]
    ) -> None:
        ids = [
            self._run.name_id(names[one.name]) if one.name in names else -(2**31) for one in table.of_kind(Kind.NAME)
        ]
        values = [numbers.get(one.name, NULL_F64) for one in table.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)]
        body = np.array(ids, "<i4").tobytes() + np.array(values, "<f8").tobytes()
        texts = [b""] * len(table.of_kind(Kind.TEXT))
        context = {"round": number, "t_ns": t_ns} | ({} if client is None else {"client": self._run.name_id(client)})
        self._run.ring.put_frame(table.number, 1, body, texts, **context)


def main() -> None:
    path, job = job_of_child()
    run = MadeRun(Path(job["run"]))
    federated = Federated(run, job["clients"], job.get("layers", len(_LAYERS)))
    rounds = job["rounds"]
    for number in range(1, rounds + 1):
        federated.round(number, _T0_NS + number * 1_000_000_000)
        run.drain()
    write = run.layer_writer(_VECTOR)
    for _ in range(job["rows"] // _ROWS_PER_DRAIN):
        write(_ROWS_PER_DRAIN)
        run.drain()
    leave_result(path, {"rounds": rounds})
    while sys.stdin.readline():
        rounds += 1
        federated.round(rounds, _T0_NS + rounds * 1_000_000_000)
        time.sleep(_DRAIN_S)
        run.drain()


if __name__ == "__main__":
    main()
