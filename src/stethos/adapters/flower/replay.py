"""A Flower ClientApp called again with a message that was recorded: `stethos replay --client-app module:app`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from stethos.adapters.flower.content import state_in
from stethos.errors import ReplayError
from stethos.replay.bundle import Bundle

if TYPE_CHECKING:
    import torch

State = dict[str, "torch.Tensor"]
_IDENTITY = ("_task_id", "_run_id", "_node_id")


def trainer_of(app: Callable[[Message, Context], Message], bundle: Bundle) -> Callable[[State, str, int], State]:
    """A trainer that calls the app as the node was called; what it kept in its context is not known."""

    import torch

    def train(state: State, client: str, round: int) -> State:
        turn = bundle.turn(round, client)
        facts = turn.get("message")
        if not isinstance(facts, Mapping):
            raise ReplayError(
                f"no message to client {client} was captured in round {round}",
                hint="capture with observe_strategy(strategy, capture='all')",
            )
        with _in_a_task(int(client)):
            reply = app(_message(facts, state, int(client)), _context(bundle, turn, int(client)))
        if reply.has_error():
            raise ReplayError(f"client {client} answered with an error: {reply.error.reason}")
        arrays = state_in(reply.content.array_records.values(), tuple(state))
        if arrays is None:
            raise ReplayError(f"client {client} answered without arrays")
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    return train


def _message(facts: Mapping[str, Any], state: State, node: int) -> Message:
    content = RecordDict()
    for name in facts.get("arrays") or ["arrays"]:
        content[name] = ArrayRecord(state)
    for name, values in (facts.get("configs") or {}).items():
        content[name] = ConfigRecord(dict(values))
    message = Message(
        content,
        dst_node_id=node,
        message_type=str(facts.get("type") or "train"),
        group_id=str(facts.get("group") or ""),
    )
    message.metadata.__dict__["_message_id"] = "stethos-replay"
    return message


def _context(bundle: Bundle, turn: Mapping[str, Any], node: int) -> Context:
    config: dict[str, Any] = {}
    label = str(turn.get("label") or "")
    if label.isdecimal():
        labels = {str(one.get("label")) for number in bundle.rounds for one in bundle.manifest(number)["clients"]}
        known = [int(one) for one in labels if one.isdecimal()]
        config = {"partition-id": int(label), "num-partitions": max(known) + 1}
    return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})


@contextlib.contextmanager
def _in_a_task(node: int) -> Iterator[None]:
    """Flower makes messages inside a task of its own alone."""
    before = {name: getattr(TaskIdentity, name, None) for name in _IDENTITY}
    for name in _IDENTITY:
        setattr(TaskIdentity, name, node if name == "_node_id" else 1)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)
