"""A program with children that log, while its own threads log too: family.py METHOD CHILDREN.

METHOD is a start method of `multiprocessing`, `pool` or `raw` (plain `os.fork`).
Everybody logs rows of their own: `child` and `parent` count up, each from 0.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading

import stethos

ROWS = 40


def child(number: int) -> int:
    for i in range(ROWS):
        stethos.log(child=i)
    logging.getLogger("family").warning("child %d", number)
    if number == 1:
        raise ValueError("the second child fails")
    return number


def main() -> None:
    method, children = sys.argv[1], int(sys.argv[2])
    is_over = threading.Event()

    def chatter(name: str) -> None:
        i = 0
        while not is_over.wait(0.0005):
            stethos.log(**{name: i})
            with stethos.span(f"{name}-{i % 50}"):
                i += 1

    threads = [threading.Thread(target=chatter, args=(f"thread{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    codes = []
    if method == "pool":
        with multiprocessing.get_context("fork").Pool(children) as pool:
            codes = pool.map(child, [0] * children, chunksize=1)
            pool.close()
            pool.join()
    for number in range(children if method != "pool" else 0):
        stethos.log(parent=number)
        if method == "raw":
            pid = os.fork()
            if not pid:
                child(0)
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        else:
            process = multiprocessing.get_context(method).Process(target=child, args=(number,))
            process.start()
            process.join()
            codes.append(process.exitcode)
    is_over.set()
    for thread in threads:
        thread.join()
    print(codes)


if __name__ == "__main__":
    main()
