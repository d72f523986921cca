"""Plays the third set without Stethos: does the training learn, and does each fault change what a client sends?

python -m benchmarks.wild.third.check learn 30000 30060   loss before and after, and seconds, of clean twins
python -m benchmarks.wild.third.check faults               how far each fault moves an update, as a share of its norm
"""

from __future__ import annotations

import math
import sys
import time

import torch

from benchmarks.wild.families import THIRD
from benchmarks.wild.play import Case
from benchmarks.wild.third.fault import OF_SENDING, can_have
from benchmarks.wild.third.loop import Loop, case_of
from benchmarks.wild.unwatched import Unwatched


def learnt(case: Case) -> tuple[float, float]:
    """The global model's loss before a federation and after it."""
    torch.manual_seed(case.seed)
    loop = Loop(case)
    before = loop.loss()
    for number in range(1, case.rounds + 1):
        loop.round(Unwatched(number))
    return before, loop.loss()


def shift_of(case: Case, rounds: int = 4) -> float:
    """How far the fault moves its client's update from that of a healthy twin, as a share of the twin's norm.

    The most of the first rounds, from the same global model and with the same batches; inf where the fault diverges.
    """
    assert case.fault is not None
    torch.manual_seed(case.seed)
    loop = Loop(case)
    most = 0.0
    for number in range(1, rounds + 1):
        start = {name: value.clone() for name, value in loop.shared_state().items()}
        if not all(value.isfinite().all() for value in start.values()):
            return math.inf
        name = loop.faulty[0]
        own = {key: list(value) if isinstance(value, list) else value for key, value in loop.own[name].items()}
        sent = []
        for fault in (None, case.fault):
            loop.own[name] = {
                key: [one.clone() for one in value] if isinstance(value, list) else value for key, value in own.items()
            }
            torch.manual_seed(number)
            state, _ = loop.train(name, start, number, fault)
            state = loop.compressed(state, start) if case.algorithm != "random-k" else state
            if fault in OF_SENDING:
                state = loop.faulty_sending(fault, name, state, start, number)
            sent.append(torch.cat([(state[key] - start[key]).reshape(-1) for key in start]))
        healthy, faulty = sent
        assert healthy.isfinite().all(), f"honest clients diverge: {case}"
        shift = float((faulty - healthy).norm() / healthy.norm().clamp_min(1e-12))
        most = max(most, shift) if math.isfinite(shift) else math.inf
        loop.own[name] = own
        if math.isinf(most):
            break
        loop.round(Unwatched(number))
    return most


def cases_with(fault: str, count: int, data: frozenset[str] = frozenset(THIRD.data)) -> list[Case]:
    """Some federations in which clients have a fault."""
    found: list[Case] = []
    seed = 0
    while len(found) < count:
        case = case_of(seed)
        seed += 1
        if case.data in data and can_have(fault, THIRD.data[case.data], case.data, case.algorithm, case.split):
            found.append(case._replace(fault=fault, faulty=1))
    return found


def main() -> int:
    torch.set_num_threads(1)
    if sys.argv[1] == "learn":
        for seed in range(int(sys.argv[2]), int(sys.argv[3])):
            case = case_of(seed)._replace(fault=None, faulty=0)
            start = time.process_time()
            before, after = learnt(case)
            told = f"{case.data} {case.model} {case.algorithm} {case.split} {case.clients} x {case.rounds}"
            print(f"{seed} {told}: {before:.2f} -> {after:.2f}, {time.process_time() - start:.1f} s", flush=True)
        return 0
    for fault in THIRD.faults:
        shifts = sorted(shift_of(case) for case in cases_with(fault, 6))
        print(f"{fault}: {', '.join(f'{one:.2f}' for one in shifts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
