"""The server's side, where messages leave and replies arrive."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from stethos.adapters.flower.observer import FlowerChoices, Observer, observer_of
from stethos.federate.round import Round
from stethos.settings import CaptureMode, Preset

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.supercore.run import Run

_INTERVAL_S = 0.5
_LONGEST_INTERVAL_S = 3.0  # Flower's own
_SHARE = 0.05


class ObservedGrid(Grid):
    """A grid that invites clients into the recording and sees each reply when it arrives.

    An observed strategy puts it on by itself. In a server loop of your own:

        grid = ObservedGrid(grid)
        with grid.round(1, arrays) as rnd:
            replies = grid.send_and_receive(messages)
            with rnd.phase("aggregate"):
                arrays = average(replies)
            rnd.result(arrays.to_torch_state_dict())
        grid.end()

    The arguments are those of `stethos.federation`. `strategy` is an observed strategy whose rounds the
    messages belong to, where something else, such as a legacy workflow, is given the grid.
    """

    def __init__(
        self, grid: Grid, strategy: object | None = None, *, name: str | None = None, dir: str | Path | None = None,
        run: str | None = None, preset: Preset = "standard", overhead: float | None = None,
        config: Mapping[str, Any] | None = None, capture: CaptureMode | None = None,
        capture_bytes: int | None = None, label: str = "flower",
    ) -> None:  # fmt: skip
        self._grid = grid
        self._observer = observer_of(strategy) or Observer(
            FlowerChoices(
                label, dir, run if name is None else name, preset, overhead, config, (), capture, capture_bytes
            )
        )

    # Rounds of an own loop ------------------------------------------------------------------------

    @contextlib.contextmanager
    def round(self, number: int, arrays: ArrayRecord | None = None) -> Iterator[Round | None]:
        """One round, which begins with these arrays; None where nothing is recorded."""
        self._observer.open_round(number, arrays)
        with self._observer.recorded_error():
            yield self._observer.current_round
        self._observer.close_round()

    def end(self) -> None:
        """End the recording, if it began here."""
        self._observer.close()

    # Observed -------------------------------------------------------------------------------------

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(self._grid.get_node_ids())
        self._observer.connected = len(nodes)
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        listed = list(messages)
        self._observer.invite(listed)
        sent_at = self._observer.clocks()
        ids = self._grid.push_messages(listed)
        self._observer.note_sent(listed, sent_at)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            self._observer.take_reply(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower does it, looking for replies more often at first, so that their arrival is known better.

        A grid with a way of its own keeps it; then replies arrive when it hands them over.
        """
        if not type(self._grid).send_and_receive.__module__.startswith("flwr."):
            return self._send_and_receive_its_way(list(messages), timeout)
        missing = set(self.push_messages(messages))
        start = time.monotonic()
        replies: list[Message] = []
        while timeout is None or time.monotonic() - start < timeout:
            fresh = list(self.pull_messages(missing))
            replies += fresh
            missing -= {reply.metadata.reply_to_message_id for reply in fresh}
            if not missing:
                break
            time.sleep(self._interval_s(time.monotonic() - start))
        return replies

    def _send_and_receive_its_way(self, messages: list[Message], timeout: float | None) -> list[Message]:
        self._observer.invite(messages)
        sent_at = self._observer.clocks()
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        self._observer.note_sent(messages, sent_at)
        for reply in replies:
            self._observer.take_reply(reply)
        return replies

    def _interval_s(self, waited_s: float) -> float:
        longest = float(getattr(self._grid, "pull_interval", _LONGEST_INTERVAL_S))
        return min(longest, max(_INTERVAL_S, waited_s * _SHARE))

    # Passed on ------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._grid.get_nodes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
