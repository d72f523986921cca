"""The client's side: a Flower mod."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from stethos.adapters.flower.content import KEY, take_ours
from stethos.collect.ride import ACKS, reply_of, take_acks
from stethos.federate.invitation import Invitation
from stethos.federate.legs import ClientLegs
from stethos.federate.site import Site
from stethos.guard import attempt
from stethos.observe import boot
from stethos.observe.spans import Span
from stethos.record.place import boot_id

logger = logging.getLogger("stethos.flower")
_MOST_MODS = 16
_FILTER_NAMES = re.compile("dp|clip|privacy|noise|percentile|filter", re.IGNORECASE)  # mods that change updates


def client_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Observe a client's work on a message: `ClientApp(mods=[client_mod])`.

    Does nothing unless the server is observed too. An exception is recorded with
    its traceback, then passes on.
    """
    invitation = attempt(_invitation_in, message, context)
    if invitation is None:
        return call_next(message, context)
    if not message.metadata.message_type.startswith("train"):
        with _evaluating(invitation, message.metadata.message_type):
            reply = call_next(message, context)
        attempt(_put_into, reply, {})
        return reply
    site = Site(invitation, side="client")
    label = attempt(lambda: context.node_config.get("partition-id"))
    if label is not None:
        site.note(label=str(label))
    attempt(lambda: site.note(filters=", ".join(_filters_within(call_next)) or None))
    start_ns = time.time_ns()
    attempt(site.received, _layers_in(message))
    with site:
        with site.phase("compute"):
            reply = call_next(message, context)
        end_ns = time.time_ns()
    attempt(_add_report, reply, site, start_ns, end_ns)
    return reply


def _invitation_in(message: Message, context: Context) -> Invitation | None:
    fields = take_ours(message.content) if message.has_content() else None
    if fields is not None:
        attempt(take_acks, fields.get(ACKS))
    return replace(Invitation.from_fields(fields), client=str(context.node_id)) if fields is not None else None


def _filters_within(call_next: Any) -> list[str]:
    """The mods between the client app and this one, outermost last; those before this one in the list are not seen."""
    names: list[str] = []
    while call_next is not None and len(names) < _MOST_MODS:
        cells = dict(zip(call_next.__code__.co_freevars, call_next.__closure__ or (), strict=False))
        if not {"_mod", "_ffn"} <= set(cells):
            break
        mod = cells["_mod"].cell_contents
        names.append(getattr(mod, "__name__", type(mod).__name__))
        call_next = cells["_ffn"].cell_contents
    return [name for name in reversed(names) if _FILTER_NAMES.search(name)]


def _layers_in(message: Message) -> dict[str, bytes]:
    """The model in a message, as it came."""
    records = message.content.array_records if message.has_content() else {}
    return {f"{record}/{layer}": array.data for record, arrays in records.items() for layer, array in arrays.items()}


def _add_report(reply: Message, site: Site, start_ns: int, end_ns: int) -> None:
    """Send what is known of the turn back with the reply; the server's side takes it out again."""
    clock: dict[str, int | str] = {"host": boot_id() or "", "start_ns": start_ns, "end_ns": end_ns}
    _put_into(reply, {**site.report(), **clock})


def _put_into(reply: Message, report: dict[str, Any]) -> None:
    """Add what a site's policy lets through, and what its spool holds."""
    told = reply_of(report) if reply.has_content() else {}
    if told:
        reply.content[KEY] = ConfigRecord(told)


@contextlib.contextmanager
def _evaluating(invitation: Invitation, kind: str) -> Iterator[None]:
    """A message that asks for no update: its rows and spans are marked, and a failure is logged."""
    fields = {"client": invitation.client, "round": invitation.round, "message_type": kind}
    legs = ClientLegs(invitation.federation, invitation.client, invitation.round, "evaluate")
    with invitation.marked(), Span(boot.current_session, f"client_{kind.partition('.')[0]}", fields):
        legs.begin()
        try:
            yield
        except Exception:
            attempt(_log_failure, invitation, kind)
            raise
        finally:
            legs.end()


def _log_failure(invitation: Invitation, kind: str) -> None:
    logger.exception("round %d: client %s failed to %s", invitation.round, invitation.client, kind)
