"""On an NVIDIA GPU: what statistics of all gradients cost the device, and what recording costs a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.child import run_child, wait_for_drainer
from benchmarks.estimate import median, quartiles, ratio_of
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_STATISTICS_TARGET = 1.25
_STEP_TARGET = 1.01
_RUN_NAME = "measured"


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    if not _has_gpu():
        return [Grid("GPU", ["what", "found"], [["all of it", "no GPU here"]])]
    say("gpu: statistics of all gradients")
    found = run_child("gpu_statistics", {"repeats": 20 if scale.is_quick else 200})
    return [_statistics_grid(found), *_steps_grids(scale, scratch)]


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


def _steps_grids(scale: Scale, scratch: Path) -> list[Grid]:
    """Bare and observed processes in turns."""
    rounds = 1 if scale.is_quick else 4
    results: dict[str, list[dict[str, Any]]] = {"bare": [], "bare again": [], "standard": []}
    for round_ in range(rounds):
        names = list(results)
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            say(f"gpu: training steps, round {round_ + 1} of {rounds}: {name}")
            directory = scratch / f"{round_}-{name.replace(' ', '-')}"
            directory.mkdir()
            preset = "" if name.startswith("bare") else name
            steps = 40 if scale.is_quick else 100
            job = {"directory": str(directory), "name": _RUN_NAME, "preset": preset, "steps": steps}
            result = run_child("gpu_trainer", job, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
            if preset:
                wait_for_drainer(directory / _RUN_NAME)
            results[name].append(result)
    bare, again = ([result["step_ms"] for result in results[name]] for name in ("bare", "bare again"))
    noise = max(abs(ratio_of(again, bare).value - 1), (max(bare) - min(bare)) / median(bare))
    rows = []
    for name, found in results.items():
        times_ms = [result["step_ms"] for result in found]
        ratio = ratio_of(times_ms, bare)
        low, high = quartiles(times_ms)
        is_judged = name == "standard"
        is_same = all(result["digest"] == results["bare"][0]["digest"] for result in found)
        rows.append([
            name, f"{median(times_ms):.3f} ms", f"{low:.3f} to {high:.3f}", "" if name == "bare" else str(ratio),
            f"{_STEP_TARGET:g}" if is_judged else "",
            verdict(ratio.value, _STEP_TARGET, noise=noise) if is_judged else "",
            f"{median([result['samples'] for result in found]):.0f}", "yes" if is_same else "NO",
        ])  # fmt: skip
    one = results["bare"][0]
    return [Grid(
        f"A training step of {one['parameters'] / 1e6:.0f} M parameters",
        ["variant", "step", "quartiles", "x bare", "target", "reached", "layer samples", "same weights"],
        rows,
        [
            f"24 Transformer layers, AdamW, bfloat16 autocast, batch {one['batch']} x {one['length']}. Processes of "
            f"each, in turns: {rounds}; the mean of {one['steps']} steps after {one['warmup']} of warm-up. `same "
            f"weights`: a digest of all weights after the last step equals that of the bare training."
        ],
    )]  # fmt: skip
