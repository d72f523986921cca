"""What training frameworks tell: epochs, evaluations, what they accumulate."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from recording import Recording
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from stethos.observe.frameworks.elastic import attempt_of


class _Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-2)


def trained(epochs: int = 3) -> list[float]:
    """The weights after a training with Lightning."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_epochs=epochs, accumulate_grad_batches=2, accelerator="cpu", enable_model_summary=False,
            num_sanity_val_steps=1, **quiet,
        )  # fmt: skip
        model = _Classifier()
        trainer.fit(model, DataLoader(data, 8), DataLoader(data, 32))
    return [float(weight) for parameter in model.parameters() for weight in parameter.detach().flatten()]


def test_lightning_tells_epochs_evaluations_and_accumulation(record: Callable[..., Recording]) -> None:
    alone = trained()
    recording = record()
    beside = trained()
    run = recording.close()
    assert beside == alone
    spans = [
        (name, json.loads(fields)) for name, fields in run.rows("SELECT name, fields FROM spans ORDER BY t_ns").values
    ]
    epochs = [fields for name, fields in spans if name == "epoch"]
    assert [(one["number"], one["steps"]) for one in epochs] == [(0, 4), (1, 4), (2, 4)]
    stages = [fields["stage"] for name, fields in spans if name == "evaluation"]
    assert stages == ["sanity_check", "validate", "validate", "validate"]
    config = json.loads(run.rows("SELECT config FROM processes").values[0][0])
    assert config["accumulate_grad_batches"] == 2 and config["max_epochs"] == 3


def test_lightning_is_given_its_functions_back(record: Callable[..., Recording]) -> None:
    from lightning.pytorch.loops.fit_loop import _FitLoop

    before = _FitLoop.__dict__["advance"]
    recording = record()
    assert _FitLoop.__dict__["advance"] is not before
    recording.close()
    assert _FitLoop.__dict__["advance"] is before


def test_the_attempt_of_an_elastic_job_is_told() -> None:
    told = {"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}
    assert attempt_of(told) == {"restart": 2, "max_restarts": 3}
    assert attempt_of({**told, "TORCHELASTIC_MAX_RESTARTS": "0"}) == {} == attempt_of({})
