"""Ranks that do not make the same collective calls."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.rankbench.job import Job, fault


@fault("collective-mismatch", ranks="either")
class OtherOperation(Job):
    def tell(self, step: int, loss: torch.Tensor) -> None:
        if self.is_odd and step == 60:
            dist.broadcast(loss, 0)
        else:
            dist.all_reduce(loss)


@fault("collective-mismatch", ranks="either")
class OtherSize(Job):
    def tell(self, step: int, loss: torch.Tensor) -> None:
        dist.all_reduce(loss.expand(3).clone() if self.is_odd and step == 60 else loss)


@fault("collective-mismatch", ranks="either")
class OtherDtype(Job):
    def tell(self, step: int, loss: torch.Tensor) -> None:
        dist.all_reduce(loss.double() if self.is_odd and step == 60 else loss)


@fault("collective-mismatch", ranks="either")
class OtherOrder(Job):
    """Two metrics are added up, on one rank in the other order."""

    def tell(self, step: int, loss: torch.Tensor) -> None:
        metrics = [loss, loss.expand(8).clone()]
        for metric in reversed(metrics) if self.is_odd and step == 60 else metrics:
            dist.all_reduce(metric)


@fault("collective-mismatch", ranks="either")
class CallLeftOut(Job):
    """One rank does not take part in adding up a metric."""

    def tell(self, step: int, loss: torch.Tensor) -> None:
        if not (self.is_odd and step == 60):
            dist.all_reduce(loss)


@fault("collective-mismatch", "hang:missing-rank", "hang:mismatch", "process-failure:ended-early", is_hang=True)
class FewerBatches(Job):
    """One rank has fewer batches and goes to the barrier at the end."""

    def run(self) -> None:
        for step, (inputs, labels) in enumerate(self.batches()):
            if self.is_odd and step == 60:
                break
            self.train(step, inputs, labels)
        dist.barrier()
