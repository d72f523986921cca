"""What is noted of parameters: those behind a loss, those of the optimizers, and those that belong to a module."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from stethos.observe.batch_facts import Facts
from stethos.observe.layer_name import names_under, parameters_of
from stethos.observe.loss_graph import LossGraph
from stethos.observe.mode_facts import mode_details, mode_facts
from stethos.observe.optimizer_facts import decay_of, frozen_head, frozen_share, has_learned_nothing, settings_of
from stethos.observe.program_check import ProgramCheck
from stethos.observe.replica import replica_facts
from stethos.schema import NULL_F64

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

_LEARNED_BY = 8  # steps after which an optimizer with a state has one
_MOST_NAMES = 8
_MOST_ASKED = 64
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class ParameterFacts:
    """Who is behind the inspected losses of a process, and who updates them."""

    def __init__(self, watch: StepRecorder, check: ProgramCheck) -> None:
        self._watch = watch
        self._check = check
        self._frozen: set[int] = set()  # ids of parameters that were frozen when they were looked at

    def facts(self, graph: LossGraph, models: list[torch.nn.Module]) -> Facts:
        """Columns of `inspections`; `models` are those whose parameters optimizers update."""
        seen = self._watch.optimizers.seen()
        roots = {id(root): root for root in models}
        names: dict[int, str] = {}
        for number, root in enumerate(roots.values(), 1):
            own = names_under(root)
            if not set(own.values()).isdisjoint(names.values()):  # else one model's layers are taken for another's
                own = {key: f"{name} of model {number}" for key, name in own.items()}
            names |= own
        reached = set(map(id, graph.leaves))
        detail: dict[str, Any] = replica_facts(graph.leaves, names, roots.values())
        facts: Facts = {"leaves": float(len(graph.leaves)), "detail": detail}
        is_plain = all(type(leaf) in _PLAIN for leaf in graph.leaves)  # sharded ones are other tensors than those used
        owners: dict[int, tuple[int, bool]] = {}  # by parameter: in how many optimizers, whether it requires a gradient
        for watched in seen:
            optimizer = watched.optimizer()
            for parameter in parameters_of(optimizer) if optimizer is not None else ():
                is_plain = is_plain and type(parameter) in _PLAIN
                owners[id(parameter)] = owners.get(id(parameter), (0, False))[0] + 1, parameter.requires_grad
            if optimizer is not None:
                detail |= decay_of(optimizer) | settings_of(optimizer, reached)
                if watched.local_step >= _LEARNED_BY and has_learned_nothing(optimizer):
                    detail.setdefault("idle", []).append(watched.number)
        detail["frozen"] = frozen_share(roots.values())
        if heads := [name for root in roots.values() if (name := frozen_head(root, reached))]:
            detail["frozen_head"] = heads[0]
        trained = list(roots.values())
        if is_plain and graph.is_complete:  # another model, trained before, may well be in evaluation mode now
            trained = [root for root in trained if any(id(one) in reached for one in root.parameters())]
        facts |= mode_facts(trained)
        detail |= mode_details(trained)
        if not owners or not is_plain:
            return facts
        alone = [leaf for leaf in graph.leaves if id(leaf) not in owners and isinstance(leaf, torch.nn.Parameter)]
        lost = [key for key in owners if key not in names and key not in reached] if names else []
        if lost:
            detail["unused_of"] = [
                watched.number for watched in seen if not set(lost).isdisjoint(map(id, watched.params))
            ]
        thawed = sum(id(leaf) in self._frozen for leaf in alone)
        if thawed:
            detail["thawed"] = thawed
        self._frozen |= {id(one) for root in models for one in root.parameters() if not one.requires_grad}
        if alone:
            detail["unoptimized"] = [names.get(id(leaf), "") for leaf in alone][:_MOST_NAMES]
            detail["unowned"] = sum(id(leaf) not in names for leaf in alone) if names else 0
        shared = [names.get(key, "?") for key, (count, _) in owners.items() if count > 1]
        if shared:
            detail["shared"] = shared[:_MOST_NAMES]
        cut = [key for key, (_, is_trained) in owners.items() if is_trained and key in names and key not in reached]
        if cut and graph.is_complete:
            detail["unreached"] = [names[key] for key in cut[:_MOST_NAMES]]
            detail["cut_of"] = [one.number for one in seen if not set(cut).isdisjoint(map(id, one.params))]
            detail |= {"unreached_count": len(cut), "optimized": len(owners)}
            detail["in_vain"] = self._check.modules.ran_in_vain(list(roots.values()), set(cut))[:_MOST_NAMES]
        facts |= {"unoptimized": float(len(alone)), "unused": float(len(lost)) if graph.is_complete else NULL_F64}
        return facts


def kinds_of(root: torch.nn.Module) -> int:
    """Tells which of the first parameters of a model are trained, and its mode."""
    flags = [one.requires_grad for one in itertools.islice(root.parameters(), _MOST_ASKED)]
    return hash((id(root), root.training, *flags))
