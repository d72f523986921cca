"""Logs as many rows as each line on stdin asks for, i = 0, 1, 2, ..., and says so: rows_on_demand.py [DIR NAME].

A line with a second word also logs that many sampled steps of a thousand layers.
"""

from __future__ import annotations

import sys

import numpy as np

import stethos
from stethos.observe.boot import current_session
from stethos.schema import LAYERS

if len(sys.argv) > 1:
    stethos.watch(dir=sys.argv[1], name=sys.argv[2])
session = current_session()
random = np.random.default_rng(0)
i = step = 0
for line in sys.stdin:
    rows, *samples = map(int, line.split())
    for i in range(i, i + rows):  # noqa: B020
        stethos.log(i=i)
    i += bool(rows)
    for step in range(step, step + sum(samples)):  # noqa: B020
        assert session is not None
        ids = [session.name_id(f"layer{layer}") for layer in range(1000)]
        names = np.array([ids, [session.name_id("gradient")] * 1000], "<i4")
        session.put_frame(LAYERS.number, names.tobytes(), random.random((10, 1000)).tobytes(), rows=1000, step=step)
    step += bool(sum(samples))
    print(i, flush=True)
