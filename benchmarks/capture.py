"""What captures cost: time of a round, bytes on disk beside the raw ones, and memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.capture_floor import floor_grid
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_TIME_TARGET = 0.03
_SIZE_TARGET = 0.5
MODES = ("none", "rounds", "suspects", "all")
Found = dict[str, list[dict[str, float]]]
FEDERATIONS = (("digits", "mlp", 10), ("digits", "cnn", 4), ("mnist", "mlp", 4))  # and rounds
_CLIENTS = 10


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    federations = FEDERATIONS[:1] if scale.is_quick else FEDERATIONS
    repeats = 2 if scale.is_quick else 4
    times: list[list[str]] = []
    sizes: list[list[str]] = []
    for data, model, rounds in federations:
        what = f"{data}, {model}, {_CLIENTS} clients x {rounds} rounds"
        say(f"captures: {what}")
        found, packed = _child(data, model, rounds, repeats, scratch / f"{data}-{model}")
        times += [_time_row(what, mode, found) for mode in MODES[1:]]
        sizes.append(_size_row(what, packed))
    say("captures: how far states can be compressed")
    return [
        Grid(
            "Captures: time of a round",
            [
                "federation",
                "capture",
                "round ms",
                "of it capture",
                "target",
                "reached",
                "beside none",
                "range",
                "MB more",
            ],
            times,
            [
                "CPU time. `Of it capture` is what the calls of the capture and its writing thread take, counted as "
                "they run; `beside none` compares the whole process with the same federation observed without a "
                "capture, interleaved: noisier. Medians. Compression is done by the drainer. `MB more`: peak memory."
            ],
        ),
        Grid(
            "Captures: bytes on disk",
            ["federation", "global models", "x raw float32", "target", "reached", "updates", "x raw"],
            sizes,
            [
                "Lossless: the low bits of weights that training has moved are noise, and noise cannot be compressed. "
                "Each global model counts once, though it ends one round and begins the next."
            ],
        ),
        floor_grid(),
    ]


def _time_row(what: str, mode: str, found: Found) -> list[str]:
    pairs = list(zip(found["none"], found[mode], strict=True))
    shares = [b["round_ms"] / a["round_ms"] - 1 for a, b in pairs]
    middle, low, high = statistics.median(shares), min(shares), max(shares)
    more = statistics.median(b["peak_mb"] - a["peak_mb"] for a, b in pairs)
    is_judged = mode == "rounds"
    counted = [one["capture_ms"] / (one["round_ms"] - one["capture_ms"]) for one in found[mode]]
    share = statistics.median(counted)
    reached = verdict(share, _TIME_TARGET, low=min(counted), high=max(counted)) if is_judged else ""
    return [
        what, mode, f"{statistics.median(one['round_ms'] for one in found[mode]):.1f}", f"{share:.1%}",
        f"{_TIME_TARGET:.0%}" if is_judged else "", reached, f"{middle:.1%}", f"{low:.1%} to {high:.1%}",
        f"{more:.1f}",
    ]  # fmt: skip


def _size_row(what: str, one: dict[str, float]) -> list[str]:
    return [
        what, f"{one['models']:.0f}", f"{one['model_ratio']:.2f}", str(_SIZE_TARGET),
        verdict(one["model_ratio"], _SIZE_TARGET), f"{one['updates']:.0f}", f"{one['update_ratio']:.2f}",
    ]  # fmt: skip


def _child(data: str, model: str, rounds: int, repeats: int, directory: Path) -> tuple[Found, dict[str, float]]:
    words = [sys.executable, "-m", "benchmarks.capture", data, model, str(rounds), str(repeats), str(directory)]
    found, packed = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found, packed


def main() -> None:
    """One federation in all modes, one after the other and again, in this process."""
    data, model, rounds, repeats, directory = sys.argv[1:]
    from benchmarks.faults.case import Case, data_of
    from stethos import lab
    from stethos.federate.captured import RoundCapture
    from stethos.replay.writer import Writer

    given = data_of(Case(data, _CLIENTS, lab.IID(), (), 0))
    settings = {"data": given, "model": model, "clients": _CLIENTS, "dir": directory, "progress": False}
    lab.federate(**settings, rounds=1, run="warm", capture="all")
    found: Found = {mode: [] for mode in MODES}
    path = None
    spent_ms = [_counted(RoundCapture, "_run"), _counted(Writer, "_write")]
    for repeat in range(int(repeats)):
        for mode in MODES:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before_ms, began = sum(map(sum, spent_ms)), time.process_time()
            capture = None if mode == "none" else mode
            made = lab.federate(**settings, rounds=int(rounds), run=f"{mode}-{repeat}", capture=capture)
            round_ms = 1e3 * (time.process_time() - began) / int(rounds)
            capture_ms = (sum(map(sum, spent_ms)) - before_ms) / int(rounds)
            found[mode].append({"round_ms": round_ms, "capture_ms": capture_ms, "peak_mb": _peak_mb()})
            path = made.path
    print(json.dumps([found, _packed(path, made.state)]))


def _counted(owner: type, name: str) -> list[float]:
    """From now on the milliseconds of its thread that each call of this method takes."""
    original: Any = getattr(owner, name)
    found: list[float] = []

    def measured(self: Any, given: Any) -> None:
        began = time.thread_time()
        try:
            original(self, given)
        finally:
            found.append(1e3 * (time.thread_time() - began))

    setattr(owner, name, measured)
    return found


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _packed(path: Path | None, state: dict[str, Any]) -> dict[str, float]:
    """What is left on disk of the global models and the updates of a run that captured all."""
    from stethos.replay.bundle import open_bundle
    from stethos.replay.pack import pack_round

    assert path is not None
    bundle = open_bundle(path)
    for number in bundle.rounds:
        pack_round(bundle.place, number, is_last=number == bundle.rounds[-1])
    raw = sum(value.nbytes for value in state.values())
    models = {tuple(bundle.manifest(number)[when]["parts"]) for number in bundle.rounds for when in ("before", "after")}
    updates = {tuple(turn["state"]["parts"]) for number in bundle.rounds for turn in bundle.manifest(number)["clients"]}
    found: dict[str, float] = {}
    for name, states in (("model", models), ("update", updates)):
        parts = {part for state in states for part in state}
        files = [bundle.place.packed(part) for part in parts]
        size = sum((one if one.exists() else one.with_suffix(".safetensors")).stat().st_size for one in files)
        found |= {f"{name}s": len(states), f"{name}_ratio": size / (raw * len(states))}
    return found


if __name__ == "__main__":
    main()
