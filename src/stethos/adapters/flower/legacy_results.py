"""Results of legacy clients that no grid has carried: those of `start_simulation`, or of a server's own proxies.

What such a server hands to its strategy is all there is to see: no times, no messages, and of an exception not whose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stethos.adapters.flower.content import ACCURACIES, LOSSES, plain_numbers, state_in, take_first
from stethos.federate.round import Round
from stethos.federate.site import Site
from stethos.guard import text_of

TakeState = Callable[[Site, dict[str, Any]], None]


def take_results(
    rnd: Round, asked: Sequence[str], results: Sequence[Any], failures: Sequence[Any], layers: Sequence[str],
    records_of: Callable[[Any], list[Any]], take_state: TakeState,
) -> None:  # fmt: skip
    """Note what came of the clients that were asked; `take_state` is given the updates."""
    rnd.select(list(asked))
    heard = set()
    for proxy, result in results:
        heard.add(str(proxy.cid))
        site = _site(rnd, str(proxy.cid))
        metrics: Mapping[str, object] = result.metrics or {}
        numbers = plain_numbers(metrics.items())
        site.tell(
            samples=result.num_examples, loss=take_first(numbers, LOSSES), accuracy=take_first(numbers, ACCURACIES)
        )
        site.note(metrics=numbers)
        state = state_in(records_of(result.parameters), layers)
        if state is not None:
            take_state(site, state)
            site.arrived_ns = None  # they are handed over all at once
    errors = [failure for failure in failures if isinstance(failure, BaseException)]
    for proxy, result in (failure for failure in failures if not isinstance(failure, BaseException)):
        heard.add(str(proxy.cid))
        words = f"status {result.status.code.name}: {result.status.message}"
        _site(rnd, str(proxy.cid)).note(status="failed", error=words)
    for client in asked:
        if client not in heard:
            _site(rnd, client).note(status="failed", error=_words(errors))


def _site(rnd: Round, client: str) -> Site:
    site = rnd.receive(client)
    site.arrived_ns = None
    return site


def _words(errors: Sequence[BaseException]) -> str | None:
    """What clients failed with, none of which is named."""
    told = list(dict.fromkeys(f"{type(error).__name__}: {text_of(error)}"[:500] for error in errors))
    return told[0] if len(told) == 1 else f"one of {len(told)}: {'; '.join(told)}"[:2000] if told else None
