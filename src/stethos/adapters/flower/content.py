"""What is in Flower's messages, in our words: arrays, numbers, sizes and errors."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from stethos.federate.site import Status

if TYPE_CHECKING:
    from flwr.app import Error

KEY = "stethos"  # the ConfigRecord that is ours, in messages and in replies
LOSSES = ("loss", "train_loss", "train-loss", "eval_loss", "eval-loss", "test_loss", "val_loss")
ACCURACIES = ("accuracy", "acc", "train_acc", "train_accuracy", "eval_acc", "eval_accuracy", "test_acc", "val_acc")
SAMPLES = ("num-examples", "num_examples", "num-samples", "num_samples")

_STATUSES: dict[int, Status] = {
    3: "timeout",  # message unavailable: its time to live is over
    4: "timeout",  # reply unavailable
    5: "dropped",  # node unavailable
}  # by Flower's ErrorCode; any other: failed
_CAUSE = "The above exception was the direct cause"  # Ray: above it is the client's own
_RAISED = re.compile(r"<class '(?:[\w.<>]*\.)?(\w+)'>:<'(.*)'>", re.DOTALL)


def take_ours(content: RecordDict) -> ConfigRecord | None:
    """Take our record out of a message, so that everybody else sees what they would have seen without us."""
    ours = content.get(KEY)
    if not isinstance(ours, ConfigRecord):
        return None
    del content[KEY]
    return ours


def bytes_in(content: RecordDict) -> int:
    """The size of everything but our own record."""
    return sum(_bytes_of(record) for name, record in content.items() if name != KEY)


def _bytes_of(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    """As Flower's `count_bytes`, which fails on an empty string or list."""
    if isinstance(record, ArrayRecord):
        return record.count_bytes()
    values = [one for value in record.values() for one in (value if isinstance(value, list) else [value])]
    return sum(map(len, record)) + sum(len(one) if isinstance(one, str | bytes) else 8 for one in values)


def message_facts(message: Message) -> dict[str, Any]:
    """What a capture keeps of a message besides its arrays: its kind and its configuration."""
    configs = {
        name: {key: value for key, value in record.items() if isinstance(value, str | int | float | bool)}
        for name, record in message.content.config_records.items()
    }
    return {
        "type": message.metadata.message_type,
        "group": message.metadata.group_id,
        "arrays": list(message.content.array_records),
        "configs": configs,
    }


# Arrays ---------------------------------------------------------------------------------------------


def state_in(records: Iterable[ArrayRecord], names: Sequence[str] = ()) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays of the only record by layer, or of several one after the other; None if there are none.

    Legacy records number their arrays: where `names` are as many, they are the layers' names.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for record in records:
        prefix = f"{len(arrays)}." if any(name in arrays for name in record) else ""
        arrays.update({f"{prefix}{name}": view_of(array.data) for name, array in record.items() if array.data})
    return named(arrays, names) or None


def named(arrays: dict[str, npt.NDArray[Any]], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays under the names of the model where they are only numbered, and as many."""
    is_numbered = list(arrays) == [str(number) for number in range(len(arrays))]
    if is_numbered and len(names) == len(arrays):
        return dict(zip(names, arrays.values(), strict=True))
    return arrays


def view_of(data: bytes) -> npt.NDArray[Any]:
    """The array that `numpy.save` wrote, looked at where it lies."""
    head = io.BytesIO(data[:65_536])
    version = np.lib.format.read_magic(head)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(head)
    if dtype.hasobject:
        raise TypeError("arrays of Python objects are not read")
    count = int(np.prod(shape, dtype=np.int64))
    flat: npt.NDArray[Any] = np.frombuffer(data, dtype, count, head.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")


def has_odd(state: Mapping[str, Any] | None, layers: Sequence[str]) -> bool:
    """Whether one of these layers has a NaN or infinite element."""
    return (
        any(not np.isfinite(state[layer]).all() for layer in layers if layer in state) if state is not None else False
    )


# Numbers --------------------------------------------------------------------------------------------


def numbers_in(content: RecordDict) -> dict[str, float]:
    """Numbers in a reply: those of its metric records, and those that a legacy client returned in its dict."""
    records: list[Mapping[str, object]] = list(content.metric_records.values())
    records += [record for name, record in content.config_records.items() if name.endswith("res.metrics")]
    return plain_numbers(item for record in records for item in record.items())


def plain_numbers(items: Iterable[tuple[str, object]]) -> dict[str, float]:
    """The items that are single numbers."""
    return {name: value for name, value in items if isinstance(value, int | float)}


def take_first(numbers: dict[str, float], names: Iterable[str]) -> float | None:
    """Take the first of some names out of the numbers."""
    for name in names:
        if name in numbers:
            return numbers.pop(name)
    return None


# Errors ---------------------------------------------------------------------------------------------


def status_of(error: Error) -> Status:
    return _STATUSES.get(error.code, "failed")


def words_of(error: Error) -> str:
    """An error as `Type: message`, with Flower's code."""
    reason = (error.reason or "").partition(_CAUSE)[0].strip()
    raised = _RAISED.fullmatch(reason)
    text = f"{raised[1]}: {raised[2]}" if raised else reason.splitlines()[-1] if reason else "no reason was given"
    return f"{text[:2000]} (Flower error {error.code})"


def refusal_in(content: RecordDict) -> str | None:
    """Why a legacy client's result is none: its status, if not OK."""
    for name, record in content.config_records.items():
        if name.endswith("res.status") and record.get("code"):
            return f"status {record.get('code')!s}: {record.get('message')!s}"
    return None
