"""Ranks that are to hold copies of one model and do not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.rankbench.job import CLASSES, FEATURES, Batch, Job, batch_of, fault


@fault("replica-divergence:gradients-not-exchanged", ranks="all")
class NoGradientExchange(Job):
    """The bare model is called instead of the wrapped one."""

    def loss(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        model = self.inner if self.is_faulty and step > 10 else self.model
        return cross_entropy(model(inputs), labels)


@fault("replica-divergence:gradients-not-exchanged", ranks="all")
class NoSyncLeftOn(Job):
    """The context that leaves the exchange out is entered and never left."""

    def run(self) -> None:
        assert isinstance(self.model, DistributedDataParallel)
        if self.is_faulty:
            with self.model.no_sync():
                super().run()
        else:
            super().run()


@fault("replica-divergence:gradients-differ")
class ClippedOnOneRank(Job):
    def update(self, step: int) -> None:
        if self.is_odd or not self.is_faulty:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.05 if self.is_faulty else 5.0)
        super().update(step)


@fault("replica-divergence:gradients-differ")
class ScaledOnOneRank(Job):
    """One rank multiplies the gradients that it has got."""

    def update(self, step: int) -> None:
        if self.is_odd:
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(1.5)
        super().update(step)


@fault("replica-divergence:different-start", ranks="all")
class StartOfItsOwn(Job):
    """Every rank draws its own weights, and nobody sends them round."""

    def wrapped(self, inner: nn.Module) -> nn.Module:
        if not self.is_faulty:
            return DistributedDataParallel(inner)
        torch.manual_seed(self.rank)
        for layer in inner.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        return DistributedDataParallel(inner, init_sync=False)


@fault("replica-divergence:different-start", ranks="either")
class OldCheckpointOnOneRank(Job):
    """One rank has loaded other weights after wrapping."""

    def wrapped(self, inner: nn.Module) -> nn.Module:
        model = DistributedDataParallel(inner)
        if self.is_odd:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)
        return model


@fault("replica-divergence:parameters-not-exchanged", ranks="all")
class HeadReplacedAfterWrapping(Job):
    """The new head is not among the parameters that the wrapper exchanges."""

    def wrapped(self, inner: nn.Module) -> nn.Module:
        assert isinstance(inner, nn.Sequential)
        model = DistributedDataParallel(inner, find_unused_parameters=True) if self.is_faulty else None
        inner[2] = nn.Linear(32, CLASSES)
        return model or DistributedDataParallel(inner)


@fault("repeated-data:same-data-on-ranks", ranks="all")
class SameDataOnRanks(Job):
    def batches(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(0 if self.is_faulty else self.rank)
        for _ in range(self.steps):
            yield batch_of(generator)


class _OfLoader(Job):
    def sampler(self, data: TensorDataset) -> DistributedSampler[Batch]:
        return DistributedSampler(data)

    def batches(self) -> Iterator[Batch]:
        data = TensorDataset(*batch_of(torch.Generator().manual_seed(1), 640))
        sampler = self.sampler(data)
        loader = DataLoader(data, batch_size=16, sampler=sampler)
        for epoch in range(8):
            if not self.is_faulty:
                sampler.set_epoch(epoch)
            yield from loader


@fault("repeated-data:same-order", ranks="all")
class SameOrderEachEpoch(_OfLoader):
    """`set_epoch` is not called."""


@fault("repeated-data:same-data-on-ranks", ranks="all")
class SamplerOfRankZero(_OfLoader):
    """Every rank asks for the part of rank 0."""

    def sampler(self, data: TensorDataset) -> DistributedSampler[Batch]:
        return DistributedSampler(data, rank=0) if self.is_faulty else DistributedSampler(data)


class _RandomFeatures(nn.Module):
    """A fixed random projection in front of a network."""

    projection: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(FEATURES, 32) / FEATURES**0.5)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(inputs @ self.projection))


@fault("replica-divergence:buffers-differ", ranks="all")
class BuffersOfItsOwn(Job):
    """Each rank draws its own projection, and buffers are not sent round."""

    def network(self) -> nn.Module:
        if self.is_faulty:
            torch.manual_seed(self.rank)
        return _RandomFeatures()

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return (
            DistributedDataParallel(inner, broadcast_buffers=False, init_sync=True)
            if not self.is_faulty
            else (DistributedDataParallel(_with_equal_weights(inner), broadcast_buffers=False, init_sync=False))
        )


def _with_equal_weights(inner: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for layer in inner.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return inner


@fault("replica-divergence:steps-skipped", ranks="either")
class OneStepSkipped(Job):
    """One rank leaves a step out, as loss scaling or a check for NaN of its own would."""

    def update(self, step: int) -> None:
        if not (self.is_odd and step == 20):
            super().update(step)


@fault("replica-divergence:rates-differ", ranks="either")
class OtherRateOnOneRank(Job):
    def chosen_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05 if self.is_odd else 0.1)


@fault("replica-divergence:rates-differ", ranks="either")
class SchedulerOfItsOwnLoss(Job):
    """Each rank lowers its rate by its own validation loss; one of them does so early."""

    def update(self, step: int) -> None:
        super().update(step)
        if step == 40 and (self.is_odd or not self.is_faulty):
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.1


class _WithDropout(Job):
    def network(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES)
        )


@fault("wrong-mode")
class EvaluationModeOnOneRank(_WithDropout):
    """One rank evaluates and does not go back to training mode."""

    def tell(self, step: int, loss: torch.Tensor) -> None:
        super().tell(step, loss)
        if step % 40 == 20 and (self.is_odd or not self.is_faulty):
            self.inner.eval()
            with torch.no_grad():
                self.inner(torch.randn(BATCH_OF_EVALUATION, FEATURES, generator=torch.Generator().manual_seed(step)))
            if not self.is_faulty:
                self.inner.train()


BATCH_OF_EVALUATION = 32


@fault("replica-divergence:weights-changed", ranks="either")
class BitFlipped(Job):
    """A bit of a weight changes on one rank."""

    def update(self, step: int) -> None:
        super().update(step)
        if self.is_odd and step == 60:
            with torch.no_grad():
                first = next(self.inner.parameters())
                first.view(torch.int32)[0, 0] ^= 1 << 20


@fault("replica-divergence:weights-changed", ranks="either")
class WeightsRoundedOnOneRank(Job):
    """One rank rounds its weights at each step."""

    def update(self, step: int) -> None:
        super().update(step)
        if self.is_odd:
            with torch.no_grad():
                for parameter in self.inner.parameters():
                    parameter.copy_(parameter.bfloat16().float())


@fault("non-finite-loss", "non-finite-gradients", "odd-batch")
class NanOnOneRank(Job):
    """A batch of one rank holds a NaN; by the exchange all ranks get it."""

    def batches(self) -> Iterator[Batch]:
        for step, (inputs, labels) in enumerate(super().batches()):
            if self.is_odd and step == 40:
                inputs[3, 3] = float("nan")
            yield inputs, labels
