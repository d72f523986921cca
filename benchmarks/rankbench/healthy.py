"""Jobs whose ranks differ in ways that are as they should be."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.rankbench.job import CLASSES, FEATURES, Batch, Job, batch_of, healthy


@healthy()
class Plain(Job):
    pass


@healthy()
class ZeroOptimizer(Job):
    """Each rank keeps the optimizer's state of its own part."""

    def chosen_optimizer(self) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(self.model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)


@healthy()
class FullyShardedModel(Job):
    def wrapped(self, inner: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (self.world,))
        for layer in inner.children():
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(inner, mesh=mesh)
        return inner


@healthy()
class TensorParallel(Job):
    """Each rank has a part of every layer and sees the same batch."""

    def wrapped(self, inner: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (self.world,))
        return parallelize_module(inner, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def batches(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(5)
        for _ in range(self.steps):
            yield batch_of(generator)


@healthy()
class AccumulationWithoutSync(Job):
    """The exchange is left out of all but the last of four backwards."""

    def train(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        assert isinstance(self.model, DistributedDataParallel)
        is_last = step % 4 == 3
        if is_last:
            (cross_entropy(self.model(inputs), labels) / 4).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            with self.model.no_sync():
                (cross_entropy(self.model(inputs), labels) / 4).backward()


@healthy()
class Accumulation(Job):
    def train(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        (cross_entropy(self.model(inputs), labels) / 4).backward()
        if step % 4 == 3:
            self.optimizer.step()
            self.optimizer.zero_grad()


@healthy()
class AverageOnRankZero(Job):
    """Rank 0 alone keeps a moving average of the weights and evaluates it."""

    def __init__(self, is_faulty: bool) -> None:
        super().__init__(is_faulty)
        self.average = copy.deepcopy(self.inner).requires_grad_(False)

    def tell(self, step: int, loss: torch.Tensor) -> None:
        if self.rank == 0:
            with torch.no_grad():
                for mine, theirs in zip(self.average.parameters(), self.inner.parameters(), strict=True):
                    mine.lerp_(theirs, 0.01)
                if step % 50 == 49:
                    self.average(torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(step)))


@healthy()
class UnevenInputsJoined(Job):
    """Rank 0 has more batches; `join` lets the others shadow its calls."""

    def run(self) -> None:
        assert isinstance(self.model, DistributedDataParallel)
        with self.model.join():
            for step, (inputs, labels) in enumerate(self.batches()):
                if self.rank and step >= 120:
                    break
                self.train(step, inputs, labels)

    def tell(self, step: int, loss: torch.Tensor) -> None:
        pass


@healthy()
class StatisticsOfItsOwn(Job):
    """Batch statistics are not sent round: they differ, and the weights do not."""

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES))

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return DistributedDataParallel(inner, broadcast_buffers=False)


@healthy()
class AveragedNowAndThen(Job):
    """Ranks train by themselves and average their weights every eight steps (local SGD)."""

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return inner

    def update(self, step: int) -> None:
        super().update(step)
        if step % 8 == 7:
            with torch.no_grad():
                for parameter in self.inner.parameters():
                    dist.all_reduce(parameter)
                    parameter /= self.world


@healthy()
class GradientsAveragedByHand(Job):
    """No wrapper: the program adds the gradients up itself."""

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return super().network()

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return inner

    def update(self, step: int) -> None:
        for parameter in self.inner.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.world
        super().update(step)


@healthy()
class EvaluationOnRankZero(Job):
    """Rank 0 evaluates and writes a checkpoint while the others wait at a barrier."""

    def tell(self, step: int, loss: torch.Tensor) -> None:
        if step % 50 == 49:
            if self.rank == 0:
                self.inner.eval()
                with torch.no_grad():
                    inputs, labels = batch_of(torch.Generator().manual_seed(9), 512)
                    for _ in range(20):
                        cross_entropy(self.inner(inputs), labels)
                self.inner.train()
            dist.barrier()


@healthy()
class GradientsCompressed(Job):
    """Gradients travel in half precision."""

    def wrapped(self, inner: nn.Module) -> nn.Module:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = DistributedDataParallel(inner)
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        return model


@healthy()
class DropoutDrawnByEachRank(Job):
    """Ranks are seeded differently after wrapping, so that their dropout differs."""

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))

    def run(self) -> None:
        torch.manual_seed(self.rank)
        super().run()


@healthy()
class RanksWithDifferentModels(Job):
    """Each rank trains another model of an ensemble; only numbers for the log are exchanged."""

    def network(self) -> nn.Module:
        torch.manual_seed(self.rank)
        return super().network()

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return inner


@healthy()
class FrozenBackbone(Job):
    """Only the head is trained, with a schedule."""

    steps: ClassVar[int] = 150

    def network(self) -> nn.Module:
        model = super().network()
        next(iter(model.children())).requires_grad_(False)
        return model

    def chosen_optimizer(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=0.01)
        self.schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return optimizer

    def update(self, step: int) -> None:
        super().update(step)
        self.schedule.step()


@healthy()
class EachRankItsOwnWork(Job):
    """Batches of very different size: no rank is always the last."""

    def batches(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(100 + self.rank)
        for _ in range(self.steps):
            yield batch_of(generator, int(torch.randint(8, 256, (), generator=generator)))
