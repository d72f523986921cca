"""SYS018: a process that ran out of memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, details
from stethos.diagnose.training import column_of, texts_of
from stethos.diagnose.window import Window
from stethos.store.frame import is_null
from stethos.store.literal import literal

_CLASSES = {
    "weight_bytes": "weights", "gradient_bytes": "gradients", "optimizer_bytes": "optimizer state",
    "graph_bytes": "activations", "other_bytes": "other tensors",
}  # fmt: skip
_MOST_FREE = 0.05  # of the machine's memory: below it, or with the process at so much of it, the system kills
_LARGE = 0.6


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A process ended because there was no memory left, on a GPU or on the machine.

    What it looks at: what the program's tensors were when the exception ended it: by class, the largest groups of
    similar tensors with the container that holds them, and the line that asked for more. Of a process that the system
    killed: its resident memory and the machine's free memory in the last samples.

    Why it matters: the training is over, and starting it again ends the same way.

    Not a fault when: a batch size was being tried out.

    Next step: the finding names the line; a smaller batch, activation checkpointing or fewer kept tensors make room.
    """

    code: ClassVar[str] = "SYS018"
    name: ClassVar[str] = "out-of-memory"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "state"})}
    reads: ClassVar[Needs] = {
        "processes": frozenset({"rank", "ending", "exit_code", "steps"}),
        "inspections": COLUMNS,
        "host": frozenset({"process", "t_ns", "rss_bytes", "machine_free_bytes"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset({"process-failure", "memory-growth", "out-of-memory-risk"})

    def check(self, window: Window) -> Iterator[Finding]:
        frame = window.frame("inspections")
        if len(frame):
            told = frame.where(texts_of(frame, "phase") == "out of memory")
            for place, facts in enumerate(details(told)):
                yield self._of_exception(window, told, place, facts)
        processes = window.frame("processes")
        for process, ending in zip(texts_of(processes, "process"), texts_of(processes, "ending"), strict=True):
            if "SIGKILL" in str(ending or ""):
                yield from self._of_kill(window, str(process))

    def _of_exception(self, window: Window, told: Any, place: int, facts: dict[str, Any]) -> Finding:
        process = str(texts_of(told, "process")[place])
        step = int(column_of(told, "step")[place])
        where = f" at {facts['line']}" if facts.get("line") else ""
        group = next((one for one in facts.get("groups", ()) if one["holder"] or one["line"]), None)
        culprit, advice = _culprit(facts, group, _batch_of(window, process))
        parts = {word: facts.get(key, 0) for key, word in _CLASSES.items()}
        text = ", ".join(f"{word} {_size(size)}" for word, size in parts.items() if size)
        sql = f"SELECT step, detail FROM inspections WHERE phase = 'out of memory' AND process = {literal(process)}"
        line = (group or {}).get("line") or facts.get("line") or ""
        return Finding(
            self.code, self.name, "gpu" if facts["device"] == "GPU" else "host", self.severity,
            f"process {process} ran out of {'GPU ' * (facts['device'] == 'GPU')}memory in step {step}{where}{culprit}",
            Subject(process=process, first=step, unit="step"), 0.95,
            (Evidence(text or "no tensors were alive", sql),), advice,
            {"line": line, "asked_at": facts.get("line", "")},
        )  # fmt: skip

    def _of_kill(self, window: Window, process: str) -> Iterator[Finding]:
        """The system leaves no word: memory that was nearly gone in the last samples is what tells."""
        host = window.frame("host")
        mine = host.where(texts_of(host, "process") == process).sorted_by("t_ns") if len(host) else host
        if not len(mine):
            return
        resident, free = (column_of(mine, name)[-3:] for name in ("rss_bytes", "machine_free_bytes"))
        resident, free = resident[~is_null(resident)], free[~is_null(free)]
        if not len(resident) or not len(free):
            return
        least, most = float(np.min(free)), float(np.max(resident))
        if least > _MOST_FREE * (least + most) or most < _LARGE * (least + most):
            return
        sql = f"SELECT t_ns, rss_bytes, machine_free_bytes FROM host WHERE process = {literal(process)} ORDER BY t_ns"
        yield Finding(
            self.code, self.name, "killed", self.severity,
            f"the system killed process {process}, probably for memory: it had {_size(most)}, {_size(least)} were free",
            Subject(process=process), 0.8, (Evidence(f"{_size(most)} resident in its last samples", sql),),
            "see what grew: `stethos profile` lists memory by class and line; use fewer workers or a smaller batch",
        )  # fmt: skip


def _culprit(facts: dict[str, Any], group: dict[str, Any] | None, batch: int | None) -> tuple[str, str]:
    """What filled the memory, as the rest of a title, and what to do."""
    sizes = {word: facts.get(key, 0) for key, word in _CLASSES.items()}
    total = sum(sizes.values())
    if group is not None and (group["keeps_graphs"] or group["bytes"] > 0.3 * total):
        name, line = group["holder"] or "a variable", f", filled at {group['line']}" if group["line"] else ""
        what = "tensors with their graphs" if group["keeps_graphs"] else f"tensors of {group['shape']}"
        advice = "keep numbers: `loss.item()` or `.detach()`" if group["keeps_graphs"] else "drop what is not needed"
        return f": {name} holds {group['count']:,} {what}{line}", f"{advice}; see {group['line'] or name}"
    asked = _asked_in(facts.get("error", ""))
    if asked > total or not total:
        told = f": it asked for {_size(asked)} at once" if asked else ""
        return told, f"make what {facts.get('line') or 'that line'} asks for smaller"
    largest = max(sizes, key=lambda word: sizes[word])
    share = f": {largest} take {_size(sizes[largest])} of {_size(total)}"
    if largest == "activations":
        fixed = total - sizes["activations"]
        room = max(facts.get("total_bytes", total) * 0.9 - fixed, 0)
        fits = f"a batch of about {int(batch * room / sizes['activations'])} would fit" if batch and room else ""
        return share, f"{fits + ', ' if fits else ''}or use `torch.utils.checkpoint` or a smaller batch"
    if largest == "optimizer state":
        return share, "use an optimizer with less state (SGD, Adafactor, 8-bit Adam), or shard it (ZeRO, FSDP)"
    if largest in ("weights", "gradients"):
        return share, "use bfloat16 weights, shard the model (FSDP), or a smaller model"
    return share, f"make what {facts.get('line') or 'that line'} asks for smaller, or free tensors before it"


def _asked_in(error: str) -> float:
    """The bytes that torch's message says were asked for; 0 where it does not say."""
    found = re.search(r"allocate ([\d.]+) (bytes|[KMGTP]iB)|allocate (\d+) bytes", error)
    if found is None:
        return 0.0
    number, unit = (found[1], found[2]) if found[1] else (found[3], "bytes")
    return float(number) * 1024.0 ** ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)


def _batch_of(window: Window, process: str) -> int | None:
    frame = window.frame("inspections")
    values = column_of(frame, "batch")[texts_of(frame, "process") == process]
    known = values[~is_null(values)]
    return int(known[-1]) if len(known) else None


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
