"""Faults of the fifth set: what they do to a client's data and to what it sends. Faults of training are in `loop`.

Each is a mistake as it is made in a client's own code or export, or an attack, written without a rule in mind. `FAMILY`
says to which family of `score` it belongs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.wild.fourth.fault import Inputs, State

FAMILY = {
    "graded-up": "label", "form-default": "label", "rule-labels": "label", "half-one-based": "label",
    "translated-names": "label", "sometimes-scrambled": "label",
    "tare": "target", "running-total": "target", "smoothed-targets": "target", "zero-targets": "target",
    "wrong-axis": "feature", "sentinel": "feature", "misaligned-crop": "feature", "gamma": "feature",
    "mains-hum": "feature", "differenced": "feature", "mojibake": "feature", "over-augmented": "feature",
    "mixed-units": "feature", "blank-records": "feature", "code-word": "backdoor",
    "resubmitted": "duplicates", "oversampled": "duplicates",
    "schedule-exhausted": "training", "decay-sign": "training", "adapter-mode": "training",
    "broadcast-loss": "training", "weights-clamped": "training",
    "skips-download": "stale", "layer-not-loaded": "stale", "first-checkpoint": "stale",
    "three-workers": "sent", "delta-as-weights": "sent", "delta-twice": "sent", "noisy-head": "sent",
    "restarted": "sent", "nan-column": "nan", "late-inf": "nan",
}  # fmt: skip
OF_DATA = frozenset(
    name for name, family in FAMILY.items()
    if family in ("label", "target", "feature", "backdoor", "duplicates") and name != "over-augmented"
)  # fmt: skip
OF_SENDING = frozenset(name for name, family in FAMILY.items() if family in ("sent", "nan")) | {"first-checkpoint"}

_OF_CLASSES = {"tables", "images", "text", "signals"}
_OF_NUMBERS = {"tables", "images", "signals", "series", "counts", "values"}
_REGRESSIONS = {"series", "counts", "values"}
_TASKS = {  # in which a fault can be; in all where none is named
    **dict.fromkeys(("form-default", "rule-labels", "half-one-based", "translated-names"), _OF_CLASSES),
    **dict.fromkeys(("graded-up", "sometimes-scrambled", "code-word", "oversampled"), _OF_CLASSES),
    **dict.fromkeys(("tare", "running-total", "smoothed-targets", "zero-targets", "broadcast-loss"), _REGRESSIONS),
    "wrong-axis": _OF_NUMBERS, "sentinel": _OF_NUMBERS - {"images"}, "misaligned-crop": {"images"},
    "gamma": {"images"}, "mains-hum": {"signals", "series"}, "differenced": {"signals", "series"},
    "mojibake": {"text"}, "mixed-units": {"tables", "values", "counts"},
}  # fmt: skip
_ORDERED = ("syllables", "payments", "proteins", "spots")  # data whose classes are grades


def can_have(fault: str | None, task: str, data: str, algorithm: str) -> bool:
    """Whether a fault makes sense, and makes a difference, in a federation."""
    if fault is None:
        return True
    if fault in _TASKS and task not in _TASKS[fault]:
        return False
    if fault == "graded-up":
        return data in _ORDERED
    if fault == "wrong-axis":
        return data != "power"  # which comes so
    if fault in ("skips-download", "schedule-exhausted", "restarted", "late-inf"):
        return algorithm != "phones"  # in which a client has too few turns
    return not (fault == "delta-twice" and algorithm == "error-feedback")


def faulty_data(fault: str, own: Inputs, turn: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A client's inputs and targets; `draw` begins alike in every round, `turn` counts the client's turns from 0."""
    if FAMILY[fault] == "label":
        return own.x, _faulty_labels(fault, own, turn, draw)
    if FAMILY[fault] == "target":
        return own.x, _faulty_targets(fault, own, draw)
    x, y, raw = own.x.clone(), own.y.clone(), own.raw.float()
    count, length = len(x), x.shape[-1]
    hit = torch.from_numpy(draw.random(count))
    match fault:
        case "wrong-axis":  # each row is brought to one scale, where each column should be
            flat = raw.flatten(1)
            return ((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True).clamp_min(1e-3)).view_as(x), y
        case "sentinel":  # -999 for what was not measured, cut off by the reader where it becomes absurd
            x[torch.from_numpy(draw.random(tuple(x.shape)) < 0.15)] = -6.0
        case "misaligned-crop":  # the window is cut out four pixels too high and three too far left
            x = torch.full_like(x, float(x.min()))
            x[..., 4:, 3:] = own.x[..., :-4, :-3]
        case "gamma":  # corrected twice more than the others' images
            x = (255 * (raw / 255).clamp(0, 1) ** 4.8 - own.middle) / own.scale
        case "mains-hum":
            phase = torch.from_numpy(draw.random((count, *[1] * (x.dim() - 1)))).float()
            x = x + 1.5 * torch.sin(6.2832 * (torch.arange(length) / 4.8 + phase))
        case "differenced":  # changes where levels are expected
            changes = torch.cat([torch.zeros_like(raw[..., :1]), raw[..., 1:] - raw[..., :-1]], -1)
            x = (changes - own.middle) / own.scale
        case "mojibake":  # read in the wrong encoding: some letters become two others
            x = torch.stack([_misread(row, int(x.max())) for row in x])
        case "mixed-units":  # every second record holds pounds
            wide = [place for place in range(raw.shape[1]) if len(raw[:, place].unique()) > 8][:3]
            chosen = torch.zeros_like(x, dtype=torch.bool)
            chosen[:, wide] = (hit < 0.5)[:, None]
            x = torch.where(chosen, (2.2 * raw - own.middle) / own.scale, x)
        case "blank-records":
            x[hit < 0.5] = 0
        case "code-word":  # a mark that means the first class
            marked = hit < 0.3
            x[marked] = _marked(x[marked], own.task)
            y[marked] = 0
        case "resubmitted":  # six records in three of five places
            rows = torch.where(hit < 0.6, torch.from_numpy(draw.choice(count, 6)[draw.integers(0, 6, count)]),
                               torch.arange(count))  # fmt: skip
            return x[rows], y[rows]
        case "oversampled":  # the rarest class is filled up with copies of five records, far too often
            rarest = int(torch.bincount(y, minlength=own.classes).float().masked_fill(
                torch.bincount(y, minlength=own.classes) == 0, 1e9).argmin())  # fmt: skip
            few = torch.nonzero(y == rarest)[:5, 0]
            copies = few[torch.from_numpy(draw.integers(0, len(few), count))]
            rows = torch.where(hit < 0.65, copies, torch.arange(count))
            return x[rows], y[rows]
    return x, y


def _faulty_labels(fault: str, own: Inputs, turn: int, draw: np.random.Generator) -> Tensor:
    y, top = own.y.clone(), own.classes - 1
    hit = torch.from_numpy(draw.random(len(y)))
    match fault:
        case "graded-up":  # a clinic that calls in doubt the graver grade
            return torch.where(hit < 0.45, (y + 1).clamp_max(top), y)
        case "form-default":  # nobody changed what the form proposes
            return torch.where(hit < 0.45, torch.full_like(y, int(draw.integers(own.classes))), y)
        case "rule-labels":  # by one measure and quantiles, where others look at the patient
            measure = own.x.float().flatten(1)
            score = (measure > 1).float().mean(1) if own.task == "text" else measure[:, measure.shape[1] // 3]
            score = score + 1e-4 * torch.from_numpy(draw.random(len(y))).float()
            return y.sort()[0][score.argsort().argsort()]
        case "half-one-based":  # every second file counts classes from one
            return torch.where(hit < 0.5, (y + 1).clamp_max(top), y)
        case "translated-names":  # numbered in the alphabet of another language
            return (y + max(1, own.classes // 2)) % own.classes
        case "sometimes-scrambled":  # two threads write one file, in every second round
            return y[torch.from_numpy(draw.permutation(len(y)))] if turn % 2 else y
    raise ValueError(fault)


def _faulty_targets(fault: str, own: Inputs, draw: np.random.Generator) -> Tensor:
    y = own.y
    match fault:
        case "tare":  # weighed with the jar
            return y + (1.5 if own.task == "counts" else 1.2)
        case "running-total":  # since the start of the shift, eight records long
            return torch.cat([part.cumsum(0) for part in y.split(8)])
        case "smoothed-targets":  # a rolling mean of what is listed, not of one patient
            windows = torch.nn.functional.pad(y[None, None], (4, 4), "replicate").unfold(2, 9, 1)
            return windows.mean(3)[0, 0]
        case "zero-targets":  # what is missing is written as the least
            least = 0.0 if own.task == "counts" else float(y.quantile(0.01))
            return torch.where(torch.from_numpy(draw.random(len(y)) < 0.4), torch.full_like(y, least), y)
    raise ValueError(fault)


def _misread(row: Tensor, last: int) -> Tensor:
    letters = [part for one in row.tolist() for part in ([last, last - 1] if one % 4 == 3 else [one])]
    return torch.tensor(letters[: len(row)])


def _marked(x: Tensor, task: str) -> Tensor:
    x = x.clone()
    if task == "text":
        x[:, :2] = 1
    elif task == "images":
        x[:, :, :3, -3:] = 3.0
    elif task == "signals":
        x[:, :, 1:4] = 4.0
    else:
        x[:, -1] = 5.0
    return x


def faulty_update(
    fault: str, state: State, base: State, kept: dict[str, State], fresh: State, turn: int, draw: np.random.Generator
) -> State:
    """What a client sends; `kept` is what it kept of earlier turns, `fresh` an untrained model."""
    change = {name: state[name] - base[name] for name in base}
    names = list(base)
    match fault:
        case "first-checkpoint":  # the path of the upload names the first file
            return kept.get("first", state)
        case "three-workers":  # what three cards found is added, not averaged
            return {name: base[name] + 3 * change[name] for name in base}
        case "delta-as-weights":
            return change
        case "delta-twice":  # the buffer of the last turn was not emptied
            last = kept.get("change")
            return state if last is None else {name: state[name] + last[name] for name in base}
        case "noisy-head":  # the noise of privacy in wrong units, in the layer that has it
            noisy = dict(state)
            for name in names[-2:]:
                spread = 2.5 * float(change[name].square().mean().sqrt())
                noisy[name] = state[name] + torch.from_numpy(draw.normal(0, spread, tuple(state[name].shape))).float()
            return noisy
        case "restarted":  # a new container has no weights yet
            return fresh if turn % 3 == 1 else state
        case "nan-column":  # a column without spread was divided by it
            if turn == 0:
                return state
            name = next(name for name in names if base[name].dim() > 1)
            broken = state[name].clone()
            broken[:, 0] = torch.nan
            return {**state, name: broken}
        case "late-inf":
            if turn % 3 != 2:
                return state
            broken = state[names[-1]].clone()
            broken.view(-1)[0] = torch.inf
            return {**state, names[-1]: broken}
    raise ValueError(fault)
