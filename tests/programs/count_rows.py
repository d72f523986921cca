"""Logs i = 0, 1, 2, ... and notes in a mapped file how many rows are complete.

    python count_rows.py DIR NAME COUNTER ROWS [PAUSE_EVERY]

After ROWS rows it waits for a line on stdin, or to be killed. With PAUSE_EVERY
it sleeps a millisecond after so many rows; without, it is busy between rows.
"""

from __future__ import annotations

import mmap
import sys
import time

import stethos

directory, name, counter, rows = *sys.argv[1:4], int(sys.argv[4])
pause_every = int(sys.argv[5]) if len(sys.argv) > 5 else 0
if directory != "-":  # else under `stethos run`
    stethos.watch(dir=directory, name=name)
with open(counter, "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 8)
done = memoryview(mapped).cast("q")
for i in range(rows):
    stethos.log(i=i)
    done[0] = i + 1
    if not pause_every:
        sum(range(300))
    elif i % pause_every == 0:
        time.sleep(0.001)
sys.stdin.readline()
