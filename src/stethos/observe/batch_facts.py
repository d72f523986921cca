"""What is noted of a batch: its scale, its labels, and the loader that it comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler, default_collate

from stethos.guard import attempt
from stethos.observe.batch_print import class_counts, equal_column, is_readable, numbers_of, print_of
from stethos.observe.loss_graph import LossGraph

_MOST_LABELS = 1 << 16
_MOST_CLASSES = 4
_SELDOM, _LEAST_LENGTHS = 0.005, 3
_PIECES = 4  # at least, that a tensor of data has
_SAMPLERS = (RandomSampler, SequentialSampler, WeightedRandomSampler)  # torch's own
Facts = dict[str, Any]  # columns of `inspections` by name; `detail` as a dict


def batch_facts(graph: LossGraph, is_early: bool) -> Facts:
    """Columns of `inspections` about inputs and labels; only early inputs are searched for a copy of the labels."""
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
    column = equal_column(inputs, labels) if is_early else -1
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
        facts["ignored"] = float((numbers_of(labels) == graph.ignored).mean())
        inputs = graph.inputs
        is_picture = inputs is not None and inputs.dim() >= 3 and inputs.is_floating_point()
        if is_picture and labels.dim() >= 3:
            facts |= _left_out(graph, labels)
        if inputs is not None and is_readable(inputs) and not inputs.is_floating_point() and inputs.numel():
            word = int(torch.mode(labels.reshape(-1)[:4096]).values)
            is_both = word == int(torch.mode(inputs.reshape(-1)[:4096]).values) and word != graph.ignored
            facts["padding"] = float((labels == word).double().mean()) if is_both else 0.0
            if graph.losses == 1:  # else the labels of one step of a sequence are the inputs of the next
                facts |= _order_facts(graph, inputs, labels)
                for words in [one for one in graph.words if one is not inputs]:
                    facts = _joined(facts, _order_facts(graph, words, labels))
    return facts


def _left_out(graph: LossGraph, labels: torch.Tensor) -> Facts:
    """The class of a picture that the loss ignores, gives no weight, or masks; and its share of all labels."""
    counts = class_counts(labels)
    if graph.ignored is not None and graph.ignored >= 0:
        return {"left_out": graph.ignored}
    if counts is None or labels.is_floating_point():
        return {}
    own = labels.detach().reshape(-1)[:_MOST_LABELS]
    masks = [one.reshape(-1)[:_MOST_LABELS] for one in graph.check.masks if one.shape == labels.shape]
    for label in np.argsort(counts)[::-1][:_MOST_CLASSES].tolist():
        if not counts[label]:
            break
        is_own = own == label
        is_hidden = any(bool((mask[is_own] == 0).all()) and bool((mask[~is_own] != 0).all()) for mask in masks)
        if label in graph.unweighed or (is_hidden and not bool(is_own.all())):
            return {"left_out": label, "ignored": float(is_own.double().mean())}
    return {}


def _joined(facts: Facts, other: Facts) -> Facts:
    """What is known of the order of two tables of words, as an encoder's and a decoder's: one is shifted rightly."""
    if other.get("shift") == 1 or (other.get("is_copy") and facts.get("shift") != 1):
        return {key: value for key, value in facts.items() if key not in ("shift", "is_copy", "sees_answer")} | other
    return facts


def mask_facts(graph: LossGraph) -> Facts:
    """Of attention over words that end with padding: the share of words, and that of padding, which is seen."""
    words, seen = graph.inputs, graph.keys
    if words is None or words.dim() != 2 or words.is_floating_point() or not is_readable(words) or not words.numel():
        return {}
    count, length = words.shape
    is_last = not graph.ahead and {(count, length), (length, count)} & graph.check.last_steps
    is_bare = seen is None and (is_last or any(size == length for size, _ in graph.ahead))
    if not is_bare and (seen is None or seen.shape[-1] != length or seen.shape[0] % count):
        return {}
    is_word = words == int(torch.mode(words[:, -1]).values)
    is_padding = is_word.flip(1).long().cumprod(1).flip(1).bool()  # what follows the last word
    if not 0.05 < float(is_padding.double().mean()) < 0.95:
        return {}
    if seen is None:
        is_seen = all(is_ahead for size, is_ahead in graph.ahead if size == length)
        is_used_elsewhere = float((is_word & ~is_padding).double().mean()) > _SELDOM
        varies = len(set(is_padding.sum(1).tolist())) >= _LEAST_LENGTHS
        share = float(is_padding.double().mean()) if is_seen and varies and not is_used_elsewhere else 0.0
        return {"last_padding" if is_last else "bare_padding": share} if share else {}
    seen = seen.reshape(count, -1, length).any(1)
    return {
        "sees_words": float(seen[~is_padding].double().mean()),
        "sees_padding": float(seen[is_padding].double().mean()),
    }


def _order_facts(graph: LossGraph, inputs: torch.Tensor, labels: torch.Tensor) -> Facts:
    """Where labels are words of the inputs: by how many places they are shifted, and whether attention sees them."""
    facts: Facts = {}
    if not bool((inputs != inputs.reshape(-1)[0]).any()):
        return facts
    if inputs.numel() == labels.numel():
        facts["is_copy"] = bool((inputs.reshape(-1) == labels.reshape(-1)).all())
    shift, length = _shift_of(inputs, labels)
    if length:
        facts["shift"] = shift
    if shift == 1:
        looks = [is_ahead for size, is_ahead in graph.ahead if size == length]
        if looks:  # of an encoder beside a decoder only one looks ahead
            facts["sees_answer"] = all(looks)
    return facts


def _shift_of(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[int, int]:
    """By how many places labels lie ahead of the inputs from which they are predicted, and the length; 0, 0: neither.

    The labels may lack some places at the end of each sequence. Sequences are rows, or columns.
    """
    if inputs.dim() != 2:
        return 0, 0
    words = numbers_of(inputs)
    for table, is_turned in ((words, False), (words.T, True)):
        count, length = table.shape
        wanted_length = labels.numel() // max(count, 1)
        if labels.numel() != count * wanted_length or not 3 < wanted_length <= length or count < 2:
            continue
        flat = numbers_of(labels.reshape(-1))
        wanted = flat.reshape(wanted_length, count).T if is_turned else flat.reshape(count, wanted_length)
        for shift in (1, 2, 3, -1):
            first, last = max(0, -shift), min(wanted_length, length - shift)
            if last - first >= 3 and bool((table[:, first + shift : last + shift] == wanted[:, first:last]).all()):
                return shift, length
    return 0, 0


def store_facts(*tensors: torch.Tensor | None) -> Facts:
    """Of a batch that is a piece of a larger tensor: which one, and how often something was written into that."""
    for tensor in tensors:
        if tensor is None or not is_readable(tensor) or not tensor.numel():
            continue
        whole = tensor.untyped_storage()
        if whole.nbytes() >= _PIECES * tensor.numel() * tensor.element_size():
            return {"store": whole.data_ptr(), "written": tensor._version}
    return {}


def loader_facts(iterator: Any) -> Facts:
    """How many batches a pass has and of what size, and how samples are drawn; only torch's own samplers are asked."""
    batches = getattr(iterator, "_index_sampler", None)
    sampler = batches.sampler if type(batches) is BatchSampler else None
    if batches is None or sampler is None:
        return {}
    is_stacked = getattr(iterator, "_collate_fn", None) is default_collate  # else samples may be in any dimension
    facts: Facts = {"batch_size": batches.batch_size, "is_stacked": is_stacked}
    if type(sampler) not in _SAMPLERS:
        return facts
    length = attempt(len, getattr(iterator, "_dataset", None))  # type: ignore[arg-type]
    if type(sampler) in (RandomSampler, SequentialSampler):
        facts |= {"batches": len(batches), "is_shuffled": type(sampler) is RandomSampler}
    if length:
        drawn = attempt(len, sampler) or length  # type: ignore[arg-type]
        facts |= {"dataset": length, "drawn_per_pass": drawn, "used": min(len(batches) * batches.batch_size, drawn)}
    if type(sampler) is WeightedRandomSampler and length:
        facts["sampler_weights"] = len(sampler.weights)
    return facts


def empty_loader(iterator: Any) -> str:
    """How a loader with data gives no batch, in words; empty where it gives some, or draws them in its own way."""
    batches = getattr(iterator, "_index_sampler", None)
    if type(batches) is not BatchSampler or type(batches.sampler) not in _SAMPLERS or attempt(len, batches) != 0:
        return ""
    length = attempt(len, getattr(iterator, "_dataset", None))  # type: ignore[arg-type]
    said = f"{length} samples, batches of {batches.batch_size}, drop_last={batches.drop_last}"
    return said if length else ""
