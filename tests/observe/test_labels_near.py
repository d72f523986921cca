"""Labels that stand in a variable beside the call of a model; and what the best constant answer to them costs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stethos.observe.labels_near import labels_near
from stethos.observe.optimizer_facts import frozen_head
from stethos.observe.prior import Prior

INPUTS = torch.randn(40, 4)


def answered(scores: Tensor) -> Tensor | None:
    """As the hook on a model does."""
    return labels_near(INPUTS, scores)


def test_labels_are_found_by_shape_and_then_by_name() -> None:
    scores = torch.randn(40, 3)
    target = torch.randint(0, 3, (40,))
    places = torch.arange(40)  # no classes: too large
    assert answered(scores) is target and len(places) == 40
    groups = torch.randint(0, 3, (40,))  # as many, of the same range
    assert answered(scores) is target and len(groups) == 40


def test_two_variables_that_may_be_labels_are_none() -> None:
    first, second = torch.randint(0, 3, (40,)), torch.randint(0, 3, (40,))
    assert answered(torch.randn(40, 3)) is None and len(first) == len(second)


def test_targets_that_are_numbers_are_found_but_neither_inputs_nor_weights_are() -> None:
    outputs = torch.randn(40, 4)
    wanted = torch.randn(40, 4)
    weight = torch.randn(40, 4, requires_grad=True)
    assert answered(outputs) is wanted and len(weight) == 40


def test_the_best_constant_answer_costs_what_the_labels_vary() -> None:
    classes = torch.randint(0, 4, (200,)) % 3
    shares = torch.bincount(classes) / 200
    found = Prior().add("NllLoss", classes, -100)["prior"]
    assert np.isclose(found, functional.cross_entropy(shares.log().expand(200, 3), classes).item())
    told = (torch.rand(200, 1) < 0.2).float()
    found = Prior().add("BinaryCrossEntropyWithLogits", told, None)["prior"]
    assert np.isclose(found, functional.binary_cross_entropy(told.mean().expand(200, 1), told).item(), rtol=1e-5)
    numbers = torch.randn(200, 3) * torch.tensor([1.0, 5.0, 9.0]) + torch.tensor([0.0, 10.0, 100.0])
    found = Prior().add("MseLoss", numbers, None)["prior"]
    assert np.isclose(found, functional.mse_loss(numbers.mean(0).expand(200, 3), numbers).item(), rtol=1e-4)


def test_labels_of_several_batches_are_taken_together_and_few_tell_nothing() -> None:
    prior = Prior()
    assert prior.add("NllLoss", torch.zeros(20, dtype=torch.long), -100) == {}
    assert np.isclose(prior.add("NllLoss", torch.ones(20, dtype=torch.long), -100)["prior"], np.log(2))
    assert prior.add("SmoothL1Loss", torch.randn(40), None) == {}


def test_a_frozen_head_is_one_above_a_body_that_learns() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    reached = set(map(id, model.parameters()))
    assert frozen_head(model, reached) == ""
    model[4].requires_grad_(False)
    assert frozen_head(model, reached) == "4"
    model[0].requires_grad_(False)  # as with an adapter between frozen layers
    assert frozen_head(model, reached) == ""
