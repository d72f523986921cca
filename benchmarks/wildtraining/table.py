"""All cases; importing this fills the table."""

from __future__ import annotations

from benchmarks.wildtraining import batches, losses, modes, mutations, optimizers, weights
from benchmarks.wildtraining.case import CASES, Case

__all__ = ["CASES", "Case", "batches", "losses", "modes", "mutations", "optimizers", "weights"]
