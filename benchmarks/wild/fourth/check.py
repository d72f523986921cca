"""Plays the fourth set without Stethos: does the training learn, and does each fault change what a client does?

python -m benchmarks.wild.fourth.check list                 the federations, and how many there are of each kind
python -m benchmarks.wild.fourth.check learn 40000 40110    of clean twins: loss of a constant answer, before and after
python -m benchmarks.wild.fourth.check faults [NAME ...]    how far each fault moves an update, as a share of its norm
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.wild.fourth.draw import FIRST, LAST, case_of
from benchmarks.wild.fourth.families import FOURTH
from benchmarks.wild.fourth.loop import Loop
from benchmarks.wild.play import Case
from benchmarks.wild.unwatched import Unwatched


def constant_loss(loop: Any) -> float:
    """The lowest loss that an answer reaches that does not look at its inputs."""
    y = torch.cat([loop.clean_data_of(name)[1][:25] for name in sorted(loop.clients)])
    outputs = {"quantile": 3, "spread": 2}.get(loop.case.model, loop.classes)
    answer = nn.Parameter(torch.zeros(outputs))
    optimizer = torch.optim.Adam([answer], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss = loop.goal(answer.expand(len(y), -1), y, None)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def learnt(case: Case, loop_of: Callable[[Case], Any] = Loop) -> tuple[float, float, float]:
    """The loss of a constant answer, of the global model before a federation, and of that after it."""
    torch.manual_seed(case.seed)
    loop = loop_of(case)
    constant, before = constant_loss(loop), loop.loss()
    for number in range(1, case.rounds + 1):
        loop.round(Unwatched(number))
    return constant, before, loop.loss()


def shift_of(case: Case, rounds: int = 6, loop_of: Callable[[Case], Any] = Loop) -> float:
    """How far the fault moves its client's update from that of a healthy twin, as a share of the twin's norm.

    The most of the first rounds, from the same global model and with the same batches; inf where the fault diverges.
    """
    torch.manual_seed(case.seed)
    loop = loop_of(case)
    most = 0.0
    name = loop.faulty[0]
    for number in range(1, rounds + 1):
        group = loop.group_of(name)
        base = {key: value.clone() for key, value in loop.models[group].state_dict().items()}
        if not all(value.isfinite().all() for value in base.values()):
            return math.inf
        sent = []
        for fault in (None, case.fault):
            torch.manual_seed(number)
            made, _ = loop.turn(name, group, base, number, fault)
            sent.append(torch.cat([(made.state[key] - base[key]).reshape(-1) for key in base]))
        healthy, faulty = sent
        if not healthy.isfinite().all():  # the faulty client spoiled the model in the round before
            return math.inf
        shift = float((faulty - healthy).norm() / healthy.norm().clamp_min(1e-12))
        most = max(most, shift) if math.isfinite(shift) else math.inf
        if math.isinf(most):
            break
        loop.round(Unwatched(number))
    return most


def told(case: Case) -> str:
    fault = f"{case.fault} x {case.faulty}" if case.fault else "clean"
    names = f"{case.data} {case.model} {case.algorithm} {case.split}"
    return f"{case.seed} {names} {case.clients} clients {case.rounds} rounds, {fault}"


def check(cases: list[Case], faults: tuple[str, ...], loop_of: Callable[[Case], Any]) -> int:
    """Do what the command line asks for with the federations of a set."""
    torch.set_num_threads(1)
    match sys.argv[1]:
        case "list":
            for case in cases:
                print(told(case))
            for axis in ("faulty", "fault", "data", "model", "algorithm", "split"):
                print(axis, dict(Counter(getattr(case, axis) for case in cases)))
        case "learn":
            for case in [one for one in cases if int(sys.argv[2]) <= one.seed < int(sys.argv[3])]:
                start = time.process_time()
                constant, before, after = learnt(case._replace(fault=None, faulty=0), loop_of)
                spent_s = time.process_time() - start
                mark = "" if after < constant else "  DOES NOT LEARN"
                print(f"{told(case)}: {constant:.2f}, {before:.2f} -> {after:.2f}, {spent_s:.1f} s{mark}", flush=True)
        case "faults":
            for fault in sys.argv[2:] or faults:
                shifts = [shift_of(case, loop_of=loop_of) for case in cases if case.fault == fault]
                print(f"{fault}: {', '.join(f'{one:.2f}' for one in shifts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(check([case_of(seed) for seed in range(FIRST, LAST)], FOURTH.faults, Loop))
