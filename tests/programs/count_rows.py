"""Logs i = 0, 1, 2, ... and notes in a mapped file how many rows are complete.

    python count_rows.py DIR NAME COUNTER ROWS [PAUSE_EVERY [spans]]

It begins when the number in that file is not negative. After ROWS rows it waits
for a line on stdin, or to be killed. With PAUSE_EVERY it sleeps a millisecond
after so many rows; with 0 it is busy between rows. The rows are metrics, or spans.
"""

from __future__ import annotations

import mmap
import sys
import time

import stethos

directory, name, counter, rows = *sys.argv[1:4], int(sys.argv[4])
pause_every = int(sys.argv[5]) if len(sys.argv) > 5 else 0
is_span = sys.argv[6:] == ["spans"]
if directory != "-":  # else under `stethos run`
    stethos.watch(dir=directory, name=name)
with open(counter, "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 8)
done = memoryview(mapped).cast("q")
while done[0] < 0:
    time.sleep(0.001)
for i in range(rows):
    if is_span:
        with stethos.span("i", value=i):
            pass
    else:
        stethos.log(i=i)
    done[0] = i + 1
    if not pause_every:
        sum(range(300))
    elif i % pause_every == 0:
        time.sleep(0.001)
sys.stdin.readline()
