"""In a fresh process: an observed program that writes rows at a steady rate, singly or as vectors."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import stethos
from benchmarks.child import job_of_child, leave_result
from benchmarks.made_run import layer_vector
from stethos.observe import boot
from stethos.schema import LAYERS

_TICK_S = 0.012
_VECTOR = 60


def main() -> None:
    path, job = job_of_child()
    handle = stethos.watch(name=job["name"], dir=Path(job["directory"]))
    session = boot.current_session()
    assert session is not None
    names, numbers = layer_vector(_VECTOR, session.name_id)
    leave_result(path, {"run": str(handle.path)})
    tick_s = _VECTOR / job["rows_per_s"] if job["as_vectors"] else _TICK_S
    singles = round(job["rows_per_s"] * tick_s)
    due = time.monotonic()
    end = due + job["seconds"]
    while due < end:
        if job["as_vectors"]:
            session.put_frame(LAYERS.number, names, numbers, rows=_VECTOR, optimizer=1)
        else:
            for _ in range(singles):
                stethos.log(loss=1.5)
        due += tick_s
        time.sleep(max(0.0, due - time.monotonic()))
    sys.stdin.readline()  # stay until whoever measures has seen enough


if __name__ == "__main__":
    main()
