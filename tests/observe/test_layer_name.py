"""Parameter names found without a model object."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from stethos.observe import layer_name
from stethos.observe.layer_name import SCAN_LIMIT, LayerNames, module_names


class Encoder(nn.Module):
    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 3), nn.ReLU(), nn.Linear(3, width))


class Tied(nn.Module):
    """Two names for one weight: the deeper one comes first in `named_parameters()`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(7, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.body[0].weight


class DistributedDataParallel(nn.Module):
    """Stands for torch's, which needs a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], lr=0.1)


def names_of(module: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, _ in module.named_parameters())


def test_a_live_model_is_found_by_its_parameters():
    model = Encoder()
    named = LayerNames().of(sgd(model))
    assert (named.model, named.layers) == ("Encoder", names_of(model))
    assert named.root is not None
    assert named.root() is model


def test_the_same_parameters_again_are_not_looked_for_again(monkeypatch: pytest.MonkeyPatch):
    model, other = Encoder(), Encoder()
    names = LayerNames()
    first = names.of(sgd(model))
    monkeypatch.setattr(layer_name, "_named_by", lambda *_: pytest.fail("looked again"))
    assert names.of(sgd(model)) is first
    monkeypatch.undo()
    found = names.of(sgd(other))
    assert found.root is None or found.root() is other
    names.know(model, "mine")
    assert names.of(sgd(model)).model == "mine"


def test_parameters_whose_model_is_gone_are_named_anew():
    model = Encoder()
    parameters = list(model.parameters())
    names = LayerNames()
    assert names.of(torch.optim.SGD(parameters, lr=0.1)).layers == names_of(model)
    owner = nn.ParameterList(parameters)
    names.know(owner)
    assert names.of(torch.optim.SGD(parameters, lr=0.1)).root is not None
    del model
    gc.collect()
    assert names.of(torch.optim.SGD(parameters, lr=0.1)).layers == ("0", "1", "2", "3")


def test_an_optimizer_of_a_part_is_named_from_the_outermost_module():
    model = nn.Sequential(Encoder(), nn.Linear(5, 2))
    named = LayerNames().of(sgd(model[0]))
    assert named.model == "Sequential"
    assert named.layers == tuple(f"0.{name}" for name in names_of(model[0]))


def test_names_follow_the_order_of_the_groups():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD([{"params": [model.bias]}, {"params": [model.weight]}], lr=0.1)
    assert LayerNames().of(optimizer).layers == ("bias", "weight")


def test_a_shared_parameter_has_the_name_torch_gives_it():
    model = Tied()
    assert LayerNames().of(sgd(model)).layers == names_of(model) == ("body.0.weight",)


@pytest.mark.parametrize(
    "wrap", [DistributedDataParallel, nn.DataParallel, lambda m: torch.compile(m, backend="eager")]
)
def test_wrappers_leave_no_trace_in_the_names(wrap):
    model = Encoder()
    wrapped = wrap(DistributedDataParallel(model))
    named = LayerNames().of(sgd(wrapped))
    assert (named.model, named.layers) == ("Encoder", names_of(model))


def test_a_child_called_module_keeps_its_name():
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    model = Holder()
    assert LayerNames().of(sgd(model)).layers == ("module.weight", "module.bias")


def test_names_that_torch_put_into_the_groups_win():
    model = Encoder()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(((f"x.{n}", p) for n, p in model.named_parameters()), lr=0.1)
    named = LayerNames().of(optimizer)
    assert named.layers == tuple(f"x.{name}" for name in names_of(model))
    assert named.model == "Encoder"
    assert LayerNames().of(torch.optim.SGD(wrapped.named_parameters(), lr=0.1)).layers == names_of(model)


def test_parameters_of_several_roots_are_told_apart():
    encoder, head, second = Encoder(), nn.Linear(3, 1), Encoder(4)
    named = LayerNames().of(sgd(encoder, head))
    assert named.model == "Encoder+Linear"
    assert named.layers[0] == "Encoder.layers.0.weight"
    assert named.layers[-2:] == ("Linear.weight", "Linear.bias")
    both = LayerNames().of(sgd(encoder, second)).layers
    assert {both[0], both[-1]} == {"Encoder_1.layers.0.weight", "Encoder_2.layers.2.bias"}


def test_parameters_without_a_module_are_numbered():
    model, loose = nn.Linear(2, 2), nn.Parameter(torch.ones(3))
    named = LayerNames().of(torch.optim.SGD([loose, *model.parameters()], lr=0.1))
    assert named.layers == ("param_0", "weight", "bias")
    alone = LayerNames().of(torch.optim.SGD([loose], lr=0.1))
    assert (alone.model, alone.layers, alone.root) == ("", ("param_0",), None)


def test_a_deep_copy_costs_no_second_search():
    model = Encoder()
    finder = LayerNames()
    first = finder.of(sgd(model))
    for _ in range(20):
        client = copy.deepcopy(model)
        named = finder.of(sgd(client))
        assert (named.model, named.layers, named.root) == (first.model, first.layers, None)
    assert finder.scans == 1
    assert finder.of(sgd(model)) == first


def test_searching_ends_after_a_few_structures():
    finder = LayerNames()
    models = [nn.Linear(width, 1) for width in range(1, SCAN_LIMIT + 3)]
    named = [finder.of(sgd(model)) for model in models]
    assert finder.scans == SCAN_LIMIT
    assert named[SCAN_LIMIT - 1].layers == ("weight", "bias")
    assert named[SCAN_LIMIT].layers == ("param_0", "param_1")


def test_a_known_module_needs_no_search_and_brings_its_name():
    part = Encoder()
    whole = nn.Sequential(part)
    finder = LayerNames()
    finder.know(part, "teacher")
    named = finder.of(sgd(whole))
    assert (named.model, named.layers, finder.scans) == ("teacher", names_of(part), 0)


def test_a_known_module_beats_a_resemblance():
    one, other = nn.Sequential(nn.Linear(2, 2)), nn.ModuleDict({"gate": nn.Linear(2, 2)})
    finder = LayerNames()
    assert finder.of(sgd(one)).layers == ("0.weight", "0.bias")
    finder.know(other)
    assert finder.of(sgd(other)).layers == ("gate.weight", "gate.bias")


def test_modules_are_held_weakly():
    finder = LayerNames()
    model = Encoder()
    finder.know(model)
    finder.of(sgd(model))
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
    assert finder.of(sgd(Encoder(9))).model in ("Encoder", "")


def test_odd_live_objects_do_not_disturb_the_search():
    class HalfBuilt(nn.Module):
        def __init__(self) -> None:
            raise ValueError("before super().__init__()")

    class Unhashable(type):
        __hash__ = None
        __eq__ = type.__eq__

    class Liar:
        @property
        def __class__(self):
            raise RuntimeError("do not look")

    class Dead:
        pass

    target = Dead()
    odd = [HalfBuilt.__new__(HalfBuilt), Unhashable("Odd", (), {"a": [1]})(), Liar(), weakref.proxy(target)]
    del target
    model = Encoder()
    assert LayerNames().of(sgd(model)).layers == names_of(model)
    assert len(odd) == 4


def test_a_cycle_of_modules_ends():
    model = Encoder()
    model._modules["self"] = model
    outer = nn.Sequential(model)
    assert LayerNames().of(sgd(outer)).model == "Sequential"


def test_modules_are_named_by_path_and_the_root_by_its_class():
    model = Encoder()
    names = module_names(DistributedDataParallel(model))
    assert names[id(model)] == "Encoder"
    assert names[id(model.layers[2])] == "layers.2"


def test_fsdp2_subclasses_are_named_after_the_users_class():
    class FSDPModule:
        pass

    sharded = type("FSDPEncoder", (FSDPModule, Encoder), {})
    assert layer_name._class_of(sharded()) == "Encoder"
