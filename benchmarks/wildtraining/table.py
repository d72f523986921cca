"""All cases; importing this fills the tables. Those of `BLIND` and `SECOND` are judged by reading, and apart."""

from __future__ import annotations

from benchmarks.wildtraining import batches, losses, modes, mutations, optimizers, weights
from benchmarks.wildtraining.blind import BLIND, decisions, healthy_ones, language, loops, objectives, vision
from benchmarks.wildtraining.case import CASES, Case
from benchmarks.wildtraining.second.every import SECOND

__all__ = [
    "BLIND", "CASES", "SECOND", "Case", "batches", "decisions", "healthy_ones", "language", "loops", "losses", "modes",
    "mutations", "objectives", "optimizers", "vision", "weights",
]  # fmt: skip

assert not SECOND.keys() & (BLIND.keys() | CASES.keys())  # a program is found by its name alone
