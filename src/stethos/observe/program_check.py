"""What an inspected backward tells beside its loss: calls, layers, schedulers, samples, and how outputs spread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stethos.observe.answers import hits_of, is_telling
from stethos.observe.batch_facts import empty_loader, store_facts
from stethos.observe.batch_print import is_readable, numbers_of, print_of
from stethos.observe.call_check import CallCheck
from stethos.observe.data_sets import DataSets
from stethos.observe.dependence import tie_facts
from stethos.observe.held_out import held_out_labels
from stethos.observe.inspection_row import put_inspection
from stethos.observe.loss_graph import LossGraph
from stethos.observe.module_check import ModuleCheck, repeated_layers, strong_dropouts
from stethos.observe.prior import Prior
from stethos.observe.row_print import SeenRows
from stethos.observe.schedules import Schedules
from stethos.observe.source_check import SourceCheck

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

Facts = dict[str, Any]

_FIRST_LOOKS = 3  # in which shapes given to layers are noted
_SOURCE_LOOK = 2  # at which the program's source is read
_MOST_ROWS, _MOST_COLUMNS = 64, 256
_MOST_LEAVES = 4
_MOST_EMPTY = 4
_LEAST_SEQUENCES = 4
_MOST_LABELS = 4096  # checksums of the labels of batches
_CLASSES = ("NllLoss", "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy")
_STEADY = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Lion")  # their steps are as long as the rate


class ProgramCheck:
    """The checks that go with an inspected backward; one per inspector."""

    def __init__(self, watch: StepRecorder) -> None:
        self._watch = watch
        self.calls = CallCheck(watch)
        self.modules = ModuleCheck(watch.session.guard.run)
        self.schedules = Schedules()
        self.rows = SeenRows()
        self.data = DataSets()
        self.labels: set[float] = set()  # checksums of the labels of inspected batches
        self.ignored: int | None = None  # the label that the loss leaves out
        self.answer_size = 0  # how many classes the outputs tell apart; 0: not known
        self.first_weight = 0  # the id of the weight that inputs meet
        self._prior = Prior()
        self._looks = 0
        self._empty = 0
        self._source = 0  # which pass over a loader the last inspected batch came from

    def refuse(self) -> None:
        """Code is about to be compiled, which must meet none of this."""
        self.modules.is_off = True
        self.uninstall()

    def uninstall(self) -> None:
        self.modules.end()
        self.calls.uninstall()

    @np.errstate(all="ignore")
    def pass_begins(self, iterator: Any) -> None:
        """A pass over a loader begins: one without a single batch leaves no other trace."""
        inspector = self._watch.inspector
        if self._watch.session.steps and (not torch.is_grad_enabled() or inspector.is_evaluated()):
            self.data.evaluation_pass(getattr(iterator, "_dataset", None), inspector.last_root())
        text = empty_loader(iterator)
        if text and self._empty < _MOST_EMPTY:
            self._empty += 1
            self.calls.note("DataLoader", iter([("empty-loader", text)]))
            for one in self.calls.take():
                put_inspection(self._watch.session, {"phase": "call", "detail": one}, [])

    def facts(self, graph: LossGraph) -> Facts:
        """Details of an inspection, before its backward."""
        self.first_weight = graph.first_weight
        spreads = [value for one in graph.features if (value := spread_of(one)) is not None]
        ranks = [value for one in graph.features if not graph.function and (value := directions_of(one)) is not None]
        graph.features.clear()
        facts: Facts = {
            **self.rows.add(graph.inputs, set(map(id, graph.leaves)), self.data.restarts),
            **self.data.changes,
        }
        facts |= {"hazards": sorted(graph.check.hazards), **store_facts(graph.inputs, graph.labels)}
        if len(self.labels) < _MOST_LABELS and is_telling(graph.labels):
            self.labels.add(print_of(graph.labels).hash)
        if graph.is_plain_mean and graph.losses == 1 and not graph.check.is_scaled:
            facts |= self._prior.add(graph.function, graph.labels, graph.ignored)
        facts |= tie_facts(graph.inputs, graph.labels) | hits_of(
            graph.function, graph.outputs, graph.labels, graph.ignored
        )
        if graph.check.is_policy or graph.policy_sign:
            facts["is_policy"] = True
        if graph.is_weighed:
            facts["weighed"] = True
        if graph.function in _CLASSES and graph.outputs is not None and graph.outputs.dim() > 1:
            self.answer_size, self.ignored = graph.outputs.shape[1], graph.ignored
        if graph.inputs is not None:
            facts["shape"] = list(graph.inputs.shape[1:])
        if spreads:
            facts["spread"] = min(spreads)
        alike = spread_of(graph.inputs)
        if alike is not None:
            facts["input_spread"] = alike
        answers = spread_of(graph.outputs)
        if answers is not None:
            facts["answer_spread"] = answers
            wanted = spread_of(graph.labels)
            facts |= {"wanted_spread": wanted} if wanted is not None else {}
        if ranks and graph.check.hazards & {"norm", "sqrt"}:  # vectors are compared by their angle
            facts["directions"] = min(ranks)
        seen = self._watch.optimizers.seen()
        made = self.schedules.facts({id(watched.optimizer()) for watched in seen})
        if made:
            facts["schedulers"] = made
        return facts

    def remarks(self, graph: LossGraph, batch: int, detail: Facts) -> list[tuple[str, str]]:
        """What is odd, after the backward: `batch` is the number of samples, 0 where it is not known."""
        remarks = graph.check.remarks_of(batch, graph.is_complete, is_stacked=bool(detail.get("is_stacked")))
        is_told = bool(detail.get("batch_size"))
        layers = self.modules.remarks_of(
            batch or _count_of(graph), 1 if is_told else 2, 0 if is_told else _length_of(graph)
        )
        found = [*remarks, *layers, *_stopped(graph)]
        carried = self.modules.take_carried()
        if carried and (detail.get("is_shuffled") or _has_class_each(graph, carried)):
            found.append(
                ("state-carried-over", "a recurrent layer is given the state that it ended the last batch with")
            )
        if graph.check.adds_constant and self.calls.graphless_at == self._watch.session.steps:
            found.append(("penalty-without-graph", "gradients without a graph, and a constant in the loss"))
        if graph.policy_sign > 0:
            found.append(("policy-sign", "the loss falls as actions with a high reward become rarer"))
        came = detail.get("samples") or 0
        trained = {id(one) for watched in self._watch.optimizers.seen() for one in watched.params}
        is_pair = graph.is_alone and not graph.is_mixed and graph.check.are_apart(graph.losses, trained)
        if is_pair or graph.check.divergences.are_trained(trained):
            found.append(("target-is-trained", "the loss is the distance of two models, and both are in an optimizer"))
        source, self._source = self._source, self._watch.local.iteration.batch_source
        is_next = source == self._source  # another batch of the same pass, not one of a second loader
        if detail.get("accumulates") and is_next and batch and came >= 2 * batch and not graph.check.is_scaled:
            optimizers = [watched.optimizer() for watched in self._watch.optimizers.seen()]
            if not all(type(one).__name__ in _STEADY for one in optimizers if one is not None):
                found.append(
                    ("accumulated-sum", f"{came} samples in batches of {batch}, and a loss that is not divided")
                )
        if graph.function in _CLASSES and (kept := held_out_labels(graph.labels)):
            found.append(("held-out-labels", kept))
        self._looks += 1
        if self._looks == _SOURCE_LOOK:
            self._read_source()
        if self._looks <= _FIRST_LOOKS:
            found += repeated_layers(self._watch.inspector.roots())
        found += strong_dropouts(self._watch.inspector.roots())
        if self._looks < _FIRST_LOOKS:
            self.modules.begin()
        else:
            self.modules.end()
        return found

    def _read_source(self) -> None:
        """Note statements of the program that cannot do what they seem to."""
        start_ns = thread_time_ns()
        modules = {type(one): one for root in self._watch.inspector.roots() for one in root.modules()}
        for name, kind, place in SourceCheck().remarks(sys._getframe(1), modules.values()):
            self.calls.note(name, iter([(kind, place)]))
        self._watch.inspector.leave_out(thread_time_ns() - start_ns)

    def rounding(self, graph: LossGraph) -> Facts:
        """Of weights in half precision: which share of them a step cannot change, as it is less than their last bit."""
        shares, epsilons = [], []
        for watched in self._watch.optimizers.seen():
            optimizer = watched.optimizer()
            group = optimizer.param_groups[0] if optimizer is not None and optimizer.param_groups else {}
            half = [one for one in watched.params if one.dtype in (torch.float16, torch.bfloat16)]
            rate = group.get("lr")
            if not half or not isinstance(rate, float):
                continue
            epsilons += [float(group["eps"])] if "eps" in group and half[0].dtype is torch.float16 else []
            is_steady = type(optimizer).__name__ in _STEADY
            shares += [share for one in half[:_MOST_LEAVES] if (share := _lost(one, rate, is_steady)) is not None]
        facts: Facts = {"rounded_away": float(np.mean(shares))} if shares else {}
        return facts | ({"half_epsilon": min(epsilons)} if epsilons else {})


def _count_of(graph: LossGraph) -> int:
    """How many samples labels and outputs have in common; 0: they do not say."""
    labels, outputs = graph.labels, graph.outputs
    if labels is None or outputs is None:
        return graph.rows
    return len(labels) if labels.dim() and outputs.dim() and len(labels) == len(outputs) else 0


def _length_of(graph: LossGraph) -> int:
    """The second size of labels that are a table."""
    return int(graph.labels.shape[1]) if graph.labels is not None and graph.labels.dim() > 1 else 0


def _has_class_each(graph: LossGraph, samples: int) -> bool:
    """Whether each of so many sequences has one class, so that none goes on in the next batch."""
    labels = graph.labels
    is_class = graph.function == "NllLoss" and not graph.check.is_policy and graph.losses == 1
    return is_class and labels is not None and labels.dim() == 1 and len(labels) == samples >= _LEAST_SEQUENCES


def _lost(weight: torch.Tensor, rate: float, is_steady: bool) -> float | None:
    gradient = weight.grad
    if gradient is None or not is_readable(weight) or not is_readable(gradient):
        return None
    own = weight.detach().reshape(-1)[:1024].float().abs()
    pull = gradient.detach().reshape(-1)[:1024].float().abs()
    step = torch.full_like(pull, rate) if is_steady else rate * pull
    last_bit = own * torch.finfo(weight.dtype).eps
    moved = pull > 0
    return float((step < last_bit / 2)[moved].float().mean()) if bool(moved.any()) else None


def _stopped(graph: LossGraph) -> Iterator[tuple[str, str]]:
    """Leaves behind a rounding that have got no gradient, or one of zeros."""
    for kind, leaves in graph.check.stops:
        plain = [leaf for leaf in leaves if is_readable(leaf)]
        gradients = [leaf.grad for leaf in plain]
        if plain and all(one is None or (is_readable(one) and not bool(one.any())) for one in gradients):
            yield f"{kind}-stops-gradient", f"{len(plain)} parameters lie behind an operation whose gradient is 0"


def directions_of(rows: torch.Tensor) -> float | None:
    """In how many directions rows differ from their mean: 1 if they lie on a line."""
    if not is_readable(rows) or not rows.is_floating_point():
        return None
    table = numbers_of(rows.detach()[:_MOST_ROWS, :_MOST_COLUMNS]).astype(np.float64)
    table = table - table.mean(0)
    products = table @ table.T
    total, size = float(np.trace(products)), float(np.sum(products**2))
    return total**2 / size if np.isfinite(size) and size > 0 else None


def spread_of(rows: torch.Tensor | None) -> float | None:
    """How much rows differ from one another, against their size: 0 if all are the same. None for too few."""
    if rows is None or rows.dim() < 2 or rows.shape[0] < 8 or not is_readable(rows) or not rows.is_floating_point():
        return None
    table = numbers_of(rows.detach().reshape(rows.shape[0], -1)[:_MOST_ROWS, :_MOST_COLUMNS]).astype(np.float64)
    size = float(np.sqrt(np.mean(table**2)))
    if not np.isfinite(size):
        return None
    return float(np.sqrt(np.mean(np.var(table, axis=0)))) / size if size > 0 else 0.0
