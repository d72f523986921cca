"""Whether a training that goes on from a checkpoint takes all of it, the state of the optimizer as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

_MOST_ENTRIES = 64


class SavedOptimizer(NamedTuple):
    """What a checkpoint says of an optimizer: the number of its parameters, and its rate before any schedule."""

    parameters: int
    rate: float


class CheckpointCheck:
    """Notes what is loaded; `remarks` says what was left, once an optimizer has stepped that is like the saved one."""

    def __init__(self, watch: StepRecorder) -> None:
        self._watch = watch
        self._saved: SavedOptimizer | None = None
        self._known = 0  # the number of the last optimizer before the checkpoint
        self._has_weights = False

    def checkpoint_loaded(self, content: Any) -> None:
        """`torch.load` has given this."""
        found = next(_optimizers_in(content), None)
        if found is not None:
            self._saved, self._has_weights = found, False
            self._known = max((one.number for one in self._watch.optimizers.seen()), default=0)

    def weights_loaded(self) -> None:
        self._has_weights = self._saved is not None

    def optimizer_loaded(self) -> None:
        self._saved = None

    def remarks(self) -> Iterator[tuple[str, str]]:
        """Of an optimizer that has begun anew, with as many parameters and the same first rate; once."""
        if self._saved is None or not self._has_weights:
            return
        for watched in self._watch.optimizers.seen():
            optimizer = watched.optimizer()
            if watched.number <= self._known or optimizer is None:
                continue
            if _saved_from(optimizer.param_groups) == self._saved:
                yield "not-resumed", f"the checkpoint has the state of an optimizer of {self._saved.parameters} tensors"
            self._saved = None
            return


def _optimizers_in(content: Any) -> Iterator[SavedOptimizer]:
    """The optimizers of a checkpoint, beside the weights."""
    if isinstance(content, dict) and "param_groups" not in content:
        for value in list(content.values())[:_MOST_ENTRIES]:
            if isinstance(value, dict) and isinstance(value.get("param_groups"), list) and value.get("state"):
                found = _saved_from(value["param_groups"])
                if found is not None:
                    yield found


def _saved_from(groups: list[Any]) -> SavedOptimizer | None:
    if not groups or not isinstance(groups[0], dict):
        return None
    rate = groups[0].get("initial_lr", groups[0].get("lr"))
    count = sum(len(group.get("params", ())) for group in groups)
    return SavedOptimizer(count, rate) if isinstance(rate, float) and count else None
