"""What captures cost: time of a round, bytes on disk beside the raw ones, and memory."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_TIME_TARGET = 0.03
_SIZE_TARGET = 0.5
MODES = ("none", "rounds", "suspects", "all")
FEDERATIONS = (
    ("digits", "mlp", 10, 20),
    ("digits", "cnn", 10, 6),
    ("mnist", "mlp", 10, 6),
)


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    federations = FEDERATIONS[:1] if scale.is_quick else FEDERATIONS
    repeats = 2 if scale.is_quick else 7
    times: list[list[str]] = []
    sizes: list[list[str]] = []
    for data, model, clients, rounds in federations:
        what = f"{data}, {model}, {clients} clients x {rounds} rounds"
        found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for repeat in range(repeats):
            for mode in MODES:
                say(f"capture {mode}: {what}")
                directory = scratch / f"{data}-{model}-{repeat}-{mode}"
                found[mode].append(_child(mode, data, model, clients, rounds, directory))
        times += [_time_row(what, mode, found) for mode in MODES[1:]]
        sizes.append(_size_row(what, found["all"][-1]))
    return [
        Grid(
            "Captures: time of a round",
            ["federation", "capture", "round ms", "of it capture", "range", "target", "reached", "MB more"],
            times,
            [
                "CPU time of the process that trains, its writing thread included, beside the same federation observed "
                "without a capture; interleaved, medians. Compression is done by the drainer. `MB more`: peak memory."
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
    ]


def _time_row(what: str, mode: str, found: dict[str, list[dict[str, float]]]) -> list[str]:
    pairs = list(zip(found["none"], found[mode], strict=True))
    shares = [b["round_ms"] / a["round_ms"] - 1 for a, b in pairs]
    middle, low, high = statistics.median(shares), min(shares), max(shares)
    more = statistics.median(b["peak_mb"] - a["peak_mb"] for a, b in pairs)
    is_judged = mode == "rounds"
    return [
        what, mode, f"{statistics.median(one['round_ms'] for one in found[mode]):.1f}", f"{middle:.1%}",
        f"{low:.1%} to {high:.1%}", f"{_TIME_TARGET:.0%}" if is_judged else "",
        verdict(middle, _TIME_TARGET, low=low, high=high) if is_judged else "", f"{more:.1f}",
    ]  # fmt: skip


def _size_row(what: str, one: dict[str, float]) -> list[str]:
    return [
        what, f"{one['models']:.0f}", f"{one['model_ratio']:.2f}", str(_SIZE_TARGET),
        verdict(one["model_ratio"], _SIZE_TARGET), f"{one['updates']:.0f}", f"{one['update_ratio']:.2f}",
    ]  # fmt: skip


def _child(mode: str, data: str, model: str, clients: int, rounds: int, directory: Path) -> dict[str, float]:
    words = [sys.executable, "-m", "benchmarks.capture", mode, data, model, str(clients), str(rounds), str(directory)]
    found: dict[str, float] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    """One federation, measured in this process."""
    mode, data, model, clients, rounds, directory = sys.argv[1:]
    from stethos import lab
    from stethos.replay.bundle import open_bundle
    from stethos.replay.pack import pack_round

    settings = {"data": data, "model": model, "clients": int(clients), "dir": directory, "progress": False}
    lab.federate(**settings, rounds=1, run="warm")
    began = time.process_time()
    result = lab.federate(**settings, rounds=int(rounds), run="run", capture=None if mode == "none" else mode)
    found = {
        "round_ms": 1e3 * (time.process_time() - began) / int(rounds),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if mode == "all":
        bundle = open_bundle(result.path)
        for number in bundle.rounds:
            pack_round(bundle.place, number, is_last=number == bundle.rounds[-1])
        raw = sum(value.nbytes for value in result.state.values())
        models = {
            tuple(bundle.manifest(number)[when]["parts"]) for number in bundle.rounds for when in ("before", "after")
        }
        updates = {
            tuple(turn["state"]["parts"]) for number in bundle.rounds for turn in bundle.manifest(number)["clients"]
        }
        for name, states in (("model", models), ("update", updates)):
            parts = {part for state in states for part in state}
            files = [bundle.place.packed(part) for part in parts]
            size = sum((one if one.exists() else one.with_suffix(".safetensors")).stat().st_size for one in files)
            found |= {f"{name}s": len(states), f"{name}_ratio": size / (raw * len(states))}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
