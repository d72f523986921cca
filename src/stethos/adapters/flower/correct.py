"""Corrections in a Flower server: replies as the strategy may see them, and the model that it made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from stethos.act.action import Treatment
from stethos.act.correction import Correction
from stethos.adapters.flower.content import SAMPLES, view_of


def corrected_replies(replies: Sequence[Message], base: ArrayRecord, correction: Correction) -> list[Message]:
    """The replies to aggregate: those that nothing is done about are the very same, errors included."""
    found = []
    for reply in replies:
        treatment = correction.of(str(reply.metadata.src_node_id))
        if reply.has_error() or treatment == Treatment():
            found.append(reply)
        elif treatment.weight:
            reply.content = _treated(reply.content, base, treatment)
            found.append(reply)
    return found


def corrected_results(results: Sequence[Any], base: ArrayRecord, correction: Correction) -> list[Any]:
    """The same for the pairs of proxy and result that a legacy strategy gets."""
    found = []
    for proxy, result in results:
        treatment = correction.of(str(getattr(proxy, "node_id", None) or proxy.cid))
        if treatment == Treatment():
            found.append((proxy, result))
        elif treatment.weight:
            result = replace(result, num_examples=max(1, round(result.num_examples * treatment.weight)))
            if treatment.scale != 1:
                olds = [view_of(array.data) for array in base.values()]
                news = [view_of(data) for data in result.parameters.tensors]
                scaled = [_scaled(old, new, treatment.scale) for old, new in zip(olds, news, strict=True)]
                tensors = [Array(one).data for one in scaled]
                result = replace(result, parameters=replace(result.parameters, tensors=tensors))
            found.append((proxy, result))
    return found


def median_of(replies: Sequence[Message]) -> ArrayRecord | None:
    """The coordinate-wise median of the replies' arrays; None where they do not match."""
    records = [next(iter(one.content.array_records.values()), None) for one in replies if not one.has_error()]
    known = [one for one in records if one is not None]
    if not known or any(list(one) != list(known[0]) for one in known):
        return None
    return ArrayRecord({name: Array(_middle([view_of(one[name].data) for one in known])) for name in known[0]})


def _middle(arrays: Sequence[Any]) -> Any:
    if arrays[0].dtype.kind != "f":
        return np.array(arrays[0])
    return np.median(np.stack(arrays), axis=0).astype(arrays[0].dtype)


def _treated(content: RecordDict, base: ArrayRecord, treatment: Treatment) -> RecordDict:
    records: dict[str, Any] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord) and treatment.scale != 1 and list(record) == list(base):
            record = ArrayRecord({
                key: Array(_scaled(view_of(base[key].data), view_of(array.data), treatment.scale))
                for key, array in record.items()
            })  # fmt: skip
        elif isinstance(record, MetricRecord) and treatment.weight != 1:
            record = MetricRecord({
                key: max(1, round(value * treatment.weight)) if key in SAMPLES and isinstance(value, int) else value
                for key, value in record.items()
            })  # fmt: skip
        records[name] = record
    return RecordDict(records)


def _scaled(old: Any, new: Any, scale: float) -> Any:
    return (old + (new - old) * scale).astype(new.dtype) if new.dtype.kind == "f" else np.array(new)
