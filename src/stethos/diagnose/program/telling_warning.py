"""PRG009: a warning of torch's or Python's that names a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.training import texts_of
from stethos.diagnose.window import Window
from stethos.store.literal import literal

# By pattern: the kind, what it means, what to do, how bad it is.
TELLING: dict[str, tuple[str, str, str, Severity]] = {
    r"Using a target size .* different to the input size": (
        "broadcast-loss", "outputs and targets of the loss have different shapes",
        "give both the same shape, for example `outputs.squeeze(1)`", Severity.ERROR),
    r"lr_scheduler\.step\(\)` before `optimizer\.step\(\)": (
        "scheduler-before-optimizer", "the scheduler steps before the optimizer, so the first learning rate is skipped",
        "call `optimizer.step()` first, then `scheduler.step()`", Severity.WARNING),
    r"None of the inputs have requires_grad=True": (
        "checkpoint-without-gradient", "activation checkpointing cuts off the gradients of what is inside",
        "use `use_reentrant=False`, or let the inputs require a gradient", Severity.ERROR),
    r"User provided device_type of '\w+', but|In (CPU|CUDA) autocast, but the target dtype is not supported": (
        "autocast-disabled", "autocast is switched off, so mixed precision is not used",
        "use a dtype and a device that autocast supports here", Severity.INFO),  # the machine has no other, perhaps
    r"The \.grad attribute of a Tensor that is not a leaf": (
        "gradient-of-non-leaf", "the program reads `.grad` of a tensor that never gets one",
        "call `retain_grad()` on it, or read the gradient of a leaf", Severity.WARNING),
    r"Implicit dimension choice for (log_)?softmax": (
        "implicit-softmax-dimension", "softmax is called without a dimension, and guesses it",
        "pass `dim=1` (or -1)", Severity.WARNING),
    r"find_unused_parameters=True was specified": (
        "needless-search", "DDP searches for unused parameters at every step and finds none",
        "leave out `find_unused_parameters=True`", Severity.INFO),
    r"RNN module weights are not part of single contiguous chunk": (
        "scattered-weights", "the weights of a recurrent layer are scattered, which costs memory",
        "call `flatten_parameters()`", Severity.INFO),
    r"(invalid value|divide by zero|overflow) encountered in": (
        "bad-arithmetic", "NumPy computes values that are not finite",
        "check the preprocessing for divisions by 0 and logarithms of 0", Severity.INFO),  # or a metric, a plot
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TellingWarning:
    """Torch or Python has printed a warning that names a mistake in the program.

    What it looks at: warnings as they were shown, in `logs` under `py.warnings`.
    Why it matters: such a line gets lost among a thousand others.
    Not a fault when: the warning is about something you do on purpose.
    Next step: correct the line that the warning names.
    """

    code: ClassVar[str] = "PRG009"
    name: ClassVar[str] = "telling-warning"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"logs": frozenset({"logger", "message"})}
    reads: ClassVar[Needs] = {"logs": frozenset({"process", "rank", "step", "logger", "message", "fields"})}
    explains: ClassVar[frozenset[str]] = frozenset({"plateau", "slow-progress", "detached-loss", "non-finite-loss"})

    def check(self, window: Window) -> Iterator[Finding]:
        frame = window.frame("logs")
        frame = frame.where(texts_of(frame, "logger") == "py.warnings")
        messages, processes = texts_of(frame, "message"), texts_of(frame, "process")
        for pattern, (kind, title, advice, severity) in TELLING.items():
            places = [at for at, text in enumerate(messages.tolist()) if text and re.search(pattern, text)]
            if not places:
                continue
            first = places[0]
            step = frame["step"][first] if "step" in frame else np.nan
            subject = Subject(process=processes[first], first=int(step) if np.isfinite(step) else None, unit="step")
            shown = str(messages[first]).split("\n")[0][:300]
            sql = f"SELECT step, message, fields FROM logs WHERE message LIKE {literal(shown[:40] + '%')}"
            yield Finding(
                self.code, self.name, kind, severity, title, subject, 0.9, (Evidence(f"shown: {shown}", sql),), advice
            )
