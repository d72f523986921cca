"""On an NVIDIA GPU: what statistics of all gradients cost the device, and what recording costs a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.alternate_cost import alternated, cost_of, turns_of
from benchmarks.child import run_child, wait_for_drainer
from benchmarks.estimate import median, quartiles
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_STATISTICS_TARGET = 1.25
_RUN_NAME = "measured"
_LENGTH = 1024  # of sequences


class Case(NamedTuple):
    """Steps to measure, for how long, and what they may cost."""

    model: str
    batch: int
    target: float
    limit_s: float
    layers: int = 0
    width: int = 0

    def __str__(self) -> str:
        sizes = f"{self.layers} layers of {self.width}" if self.layers else self.model
        return f"{sizes}, batch {self.batch}"


# The CNN waits for the host, the others for the GPU; the ResNet was chosen beforehand and nothing was tuned on it.
_CASES = (
    Case("hugging-face", 6, 1.01, 30.0), Case("gpt2", 16, 1.01, 25.0),
    Case("gpt2-compiled", 16, 1.015, 25.0), Case("layers", 16, 1.005, 28.0, 24, 1024),
    Case("cnn", 32, 1.05, 20.0), Case("resnet50", 64, 1.01, 40.0),
)  # fmt: skip


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    if not _has_gpu():
        return [Grid("GPU", ["what", "found"], [["all of it", "no GPU here"]])]
    say("gpu: statistics of all gradients")
    found = run_child("gpu_statistics", {"repeats": 20 if scale.is_quick else 200})
    same = _has_same_weights(scale, scratch)
    statistics = _statistics_grid(found)
    print(statistics, flush=True)  # what follows takes minutes, and may be cut short
    return [statistics, _steps_grid(scale, scratch, same)]


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _statistics_grid(found: dict[str, Any]) -> Grid:
    read_ms = median(found["times_ms"]["one read (sum of one vector)"])
    rows = []
    for what, times_ms in found["times_ms"].items():
        low, high = quartiles(times_ms)
        is_judged = what.startswith("Stethos") and "float32" in what
        ratio = median(times_ms) / read_ms
        rows.append([
            what, f"{median(times_ms):.3f} ms", f"{low:.3f} to {high:.3f}", f"{ratio:.2f}",
            f"{_STATISTICS_TARGET:g}" if is_judged else "", verdict(ratio, _STATISTICS_TARGET) if is_judged else "",
        ])  # fmt: skip
    return Grid(
        f"Norm, mean, std, min, max, zeros, NaN and Inf of {found['elements'] / 1e6:.0f} M gradients in "
        f"{found['tensors']} tensors",
        ["what", "time of the GPU", "quartiles", "x one read", "target", "reached"],
        rows,
        [
            f"{found['gpu']}, torch {found['torch']}, Triton {found['triton']}. Medians of {found['repeats']}, by CUDA "
            f"events. Largest difference to float64 on the CPU, relative to the largest element: {found['error']:.1e}. "
            f"Compiling the kernel took {found['compile_s']:.1f} s, in a thread beside the training."
        ],
    )  # fmt: skip


def _has_same_weights(scale: Scale, scratch: Path) -> bool:
    """Whether a bare and an observed training end with the same weights, with deterministic kernels."""
    digests = []
    for name in ("bare", "standard"):
        say(f"gpu: weights after a training: {name}")
        directory = scratch / name
        directory.mkdir()
        preset = "" if name == "bare" else name
        job = {"directory": str(directory), "name": _RUN_NAME, "preset": preset, "steps": 20 if scale.is_quick else 40}
        digests.append(run_child("gpu_trainer", job, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})["digest"])
        if preset:
            wait_for_drainer(directory / _RUN_NAME)
    return digests[0] == digests[1]


def _alternated(scratch: Path, case: Case, *, is_quick: bool) -> dict[str, Any]:
    """One process that trains bare and observed in turns."""
    job = {
        "device": "cuda", "preset": "standard", "model": case.model, "layers": case.layers, "width": case.width,
        "batch": case.batch,
        "length": _LENGTH, "warmup": [20, 20], "pause_s": 2.0, "turns": 4 if is_quick else 400,
        "steps": 12 if is_quick else 20, "settle": 4, "limit_s": case.limit_s,
    }  # fmt: skip
    return alternated(scratch / f"alternate-{case.model}", job)


def _steps_grid(scale: Scale, scratch: Path, has_same_weights: bool) -> Grid:
    found = {}
    for case in _CASES:
        say(f"gpu: training steps, bare and observed in turns, {case}")
        found[case] = _alternated(scratch, case, is_quick=scale.is_quick)
        cost, own = cost_of(turns_of(found[case])).observed, found[case]["own_share"]
        say(f"gpu: {case}: {cost.value:.4f} times ({cost.low:.4f} to {cost.high:.4f}); it says {own:.2%}")
    return steps_grid(found, has_same_weights)


def steps_grid(found: dict[Case, dict[str, Any]], has_same_weights: bool) -> Grid:
    """What recording costs a step, by case."""
    rows = []
    for case, one in found.items():
        cost = cost_of(turns_of(one))
        ratio = cost.observed
        rows.append([
            str(case), f"{one['parameters'] / 1e6:.1f} M", f"{cost.bare_ms:.2f} ms", f"{ratio.value:.4f}",
            f"{ratio.low:.4f} to {ratio.high:.4f}", f"{case.target:g}",
            verdict(ratio.value, case.target, low=ratio.low, high=ratio.high),
            f"{one['gradient_steps'] / one['observed_steps']:.0%}", f"{one['own_share']:.2%}",
        ])  # fmt: skip
    steps = ", ".join(f"{len(each['turns']) * each['steps']:,}" for each in found.values())
    return Grid(
        "A training step, bare and observed",
        ["model", "parameters", "bare step", "x bare", "interval", "target", "reached", "steps read", "own figure"],
        rows,
        [
            "GPT-2 (`hugging-face`: that of the package transformers) and Transformer layers: AdamW, bfloat16 "
            "autocast, sequences of 1024; ResNet-50: float16 with a gradient scaler. Preset `standard`. One process "
            "for each model, bare and observed in turns of 20 steps, "
            f"{steps} of each kind; by CUDA events between the ends of steps. Interquartile means, and what samples "
            "take in full; intervals of 95 % from resampled turns. *Steps read*: those with statistics of all "
            "gradients. *Own figure*: the overhead that Stethos measures itself, as `stethos doctor` shows it.",
            "Weights after 80 steps, with deterministic kernels, bare and observed: "
            + ("bit-identical." if has_same_weights else "NOT THE SAME."),
        ],
    )
