"""What is noted of a batch: its scale, its labels, and the loader that it comes from."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from stethos.observe.batch_print import class_counts, equal_column, is_readable, print_of
from stethos.observe.loss_graph import LossGraph

Facts = dict[str, Any]  # columns of `inspections` by name; `detail` as a dict


def batch_facts(graph: LossGraph) -> Facts:
    """Columns of `inspections` about inputs and labels."""
    facts: Facts = {}
    inputs, labels = graph.inputs, graph.labels
    for name, tensor in (("input", inputs), ("label", labels)):
        taken = print_of(tensor)._asdict()
        if tensor is inputs and tensor is not None and not tensor.is_floating_point():  # numbers of words: no scale
            taken = {"hash": taken["hash"]}
        facts |= {f"{name}_{key}": value for key, value in taken.items()}
    if inputs is not None:
        facts["batch"] = float(inputs.shape[0])
    counts = class_counts(labels)
    if counts is not None:
        facts["classes"] = float(sum(count > 0 for count in counts))
        facts["top_class_share"] = max(counts) / sum(counts)
    if graph.outputs is not None and graph.outputs.dim() > 1:
        facts["outputs"] = float(graph.outputs.shape[1])
    column = equal_column(inputs, labels)
    if column >= 0:
        facts["leaking_column"] = float(column)
    return facts


def label_facts(graph: LossGraph) -> Facts:
    """Of labels that are classes: how many, how many the loss leaves out, whether the commonest is a padding word."""
    labels = graph.labels
    if labels is None or not is_readable(labels) or not labels.numel():
        return {}
    facts: Facts = {"labels": labels.numel()}
    if graph.ignored is not None:
        facts["ignored"] = float((labels == graph.ignored).double().mean())
        inputs = graph.inputs
        if inputs is not None and is_readable(inputs) and not inputs.is_floating_point() and inputs.numel():
            word = int(torch.mode(labels.reshape(-1)[:4096]).values)
            is_both = word == int(torch.mode(inputs.reshape(-1)[:4096]).values) and word != graph.ignored
            facts["padding"] = float((labels == word).double().mean()) if is_both else 0.0
            is_one = graph.losses == 1  # else the labels of one step of a sequence are the inputs of the next
            if is_one and inputs.numel() == labels.numel() and bool((inputs != inputs.reshape(-1)[0]).any()):
                facts["is_copy"] = bool((inputs.reshape(-1) == labels.reshape(-1)).all())
    return facts


def loader_facts(iterator: Any) -> Facts:
    """How many batches a pass has, and whether their order is drawn at random; only torch's own samplers are asked."""
    batches = getattr(iterator, "_index_sampler", None)
    sampler = batches.sampler if type(batches) is BatchSampler else None
    if batches is None or type(sampler) not in (RandomSampler, SequentialSampler):
        return {}
    return {"batches": len(batches), "is_shuffled": type(sampler) is RandomSampler}
