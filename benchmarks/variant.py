"""The ways a training can be observed, ours and others'. Torch and the tools are imported in the child only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from benchmarks.workload import Note, Training

Begin = Callable[["Training", Path], "Note | None"]


@dataclass(frozen=True, slots=True)
class Variant:
    """`begin` sets the observation up and returns what is to be called after every backward, if anything.

    `needs` is the package of another tool, `environment` what it wants to see before Python starts.
    """

    label: str
    begin: Begin
    needs: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    is_ours: bool = False

    @property
    def is_there(self) -> bool:
        return self.needs is None or find_spec(self.needs) is not None


RUN_NAME = "measured"


def _bare(training: Training, directory: Path) -> None:
    return None


def _watched(preset: str, overhead: float | None = None) -> Begin:
    def begin(training: Training, directory: Path) -> None:
        import stethos

        stethos.watch(training.model, name=RUN_NAME, dir=directory, preset=preset, overhead=overhead)  # type: ignore[arg-type]

    return begin


def _by_hand(training: Training, directory: Path) -> Note:
    """Seven statistics of every gradient at every step, kept in lists: what one writes when a training misbehaves."""
    losses: list[float] = []
    kept: dict[str, list[tuple[float, ...]]] = {name: [] for name, _ in training.model.named_parameters()}

    def note(step: int, loss: torch.Tensor) -> None:
        losses.append(loss.item())
        for name, param in training.model.named_parameters():
            grad = param.grad
            assert grad is not None
            kept[name].append((
                grad.norm().item(), grad.mean().item(), grad.std().item(), grad.min().item(), grad.max().item(),
                (grad == 0).float().mean().item(), grad.isnan().sum().item(),
            ))  # fmt: skip

    return note


def _tensorboard(training: Training, directory: Path) -> Note:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(directory / "tensorboard"))

    def note(step: int, loss: torch.Tensor) -> None:
        writer.add_scalar("loss", loss.item(), step)
        for name, param in training.model.named_parameters():
            writer.add_histogram(name, param.grad, step)

    return note


def _wandb(training: Training, directory: Path) -> Note:
    import wandb  # type: ignore[import-not-found]

    os.environ["WANDB_SILENT"] = "true"
    run: Any = wandb.init(mode="offline", dir=str(directory), project="benchmark")
    run.watch(training.model)

    def note(step: int, loss: torch.Tensor) -> None:
        run.log({"loss": loss.item()})

    return note


BARE, AGAIN, STANDARD = "bare", "again", "standard"
VARIANTS: dict[str, Variant] = {
    BARE: Variant("bare", _bare),
    AGAIN: Variant("bare again (the noise)", _bare),
    "rows": Variant("Stethos, step rows only", _watched("light", 0.0), is_ours=True),
    "light": Variant("Stethos, light", _watched("light"), is_ours=True),
    STANDARD: Variant("Stethos, standard", _watched("standard"), is_ours=True),
    "python": Variant(
        "Stethos, standard, callbacks in Python", _watched("standard"), None, {"STETHOS_NATIVE": "0"}, is_ours=True
    ),
    "deep": Variant("Stethos, deep", _watched("deep"), is_ours=True),
    "hand": Variant("by hand: 7 x .item() per gradient", _by_hand),
    "probing": Variant(
        "probing, torch profiling on", _bare, "probing", {"PROBING": "1", "PROBING_TORCH_PROFILING": "on"}
    ),
    "tensorboard": Variant("TensorBoard, gradient histograms", _tensorboard, "tensorboard"),
    "wandb": Variant("W&B offline, watch(model)", _wandb, "wandb"),
}
_IN_QUICK = (BARE, AGAIN, STANDARD, "hand")


def variants_for(workload: str, *, is_quick: bool, without: frozenset[str] = frozenset()) -> list[str]:
    """Those to measure: what is installed; in a quick look the main ones, with other tools on the MLP alone."""
    names = [name for name, variant in VARIANTS.items() if variant.is_there and name not in without]
    if workload != "mlp" and "rows" in names:
        names.remove("rows")
    if is_quick:
        return [name for name in names if name in _IN_QUICK or (VARIANTS[name].needs and workload == "mlp")]
    return names
