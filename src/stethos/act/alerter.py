"""Looks at a run, compares with what was told, and tells what is new, what lasts and what is over."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from stethos.act.alert_rule import Alerts, Rule
from stethos.act.alert_sink import AlertItem, AlertMessage, deliver
from stethos.act.alert_state import AlertState, LastAlert, PendingAlert
from stethos.act.webhook import DeliveryError
from stethos.diagnose.detectors import detector_named
from stethos.errors import QueryError
from stethos.store.silences import Silence, read_silences

if TYPE_CHECKING:
    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.diagnose.finding import Finding
    from stethos.store.run import Run

_FIRST_WAIT_S = 2.0
_LONGEST_WAIT_S = 900.0
_GIVE_UP_S = 86_400.0
_QUERY_S = 10.0


class Alerter:
    """The alerts of one run. `look` decides what to tell, `send` delivers what waits; both can be repeated at will."""

    def __init__(
        self, alerts: Alerts, run: Run, *, clock: Callable[[], float] = time.time,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._alerts = alerts
        self._run = run
        self._state = AlertState(run.path)
        self._clock = clock
        self._say = say

    def look(self, diagnosis: Diagnosis) -> None:
        """Decide what is new, lasts or is over; what people have silenced is left out.

        A rule whose detector could not be checked keeps its state.
        """
        now_s, known = self._clock(), self._state.told()
        seen = read_silences(self._run.path)
        told: list[LastAlert] = []
        passed: list[tuple[str, str]] = []
        waiting: list[tuple[str, str]] = []
        for rule in self._alerts.rules:
            items = self._items(rule, diagnosis)
            if items is None:
                continue
            present = {item.key: item for item in items}
            for key, item in present.items():
                if key in seen and (seen[key].state == "silenced" or (rule.name, key) in known):
                    continue
                old = known.get((rule.name, key))
                is_graver = old is not None and old.severity != item.severity
                is_due = old is not None and 0 < rule.repeat_s <= now_s - old.told_s
                if old is None or is_graver or is_due:
                    one = item if old is None or is_graver else replace(item, state="again")
                    since_s = now_s if old is None else old.since_s
                    told.append(LastAlert(rule.name, key, item.severity, item.title, since_s, now_s))
                    waiting += [(sink, json.dumps(asdict(one))) for sink in rule.sinks]
            for (name, key), old in known.items():
                if name == rule.name and key not in present and not _is_silenced(seen, key):
                    passed.append((name, key))
                    item = AlertItem(key, name, "over", old.severity, old.title)
                    waiting += [(sink, json.dumps(asdict(item))) for sink in rule.sinks]
        if told or passed:
            self._state.say(told, passed, waiting, now_s)

    def send(self, *, is_last: bool = False) -> int:
        """Deliver what waits, grouped by sink; return how many items still wait. The last time nothing is held back."""
        now_s = self._clock()
        for name, items in _by_sink(self._state.waiting()):
            sink = self._alerts.sinks.get(name)
            due = [item for item in items if item.next_s <= now_s or is_last]
            is_young = not is_last and all(now_s - item.since_s < self._alerts.group_s for item in due)
            if not due or is_young:
                continue
            old = [item for item in due if sink is None or now_s - item.since_s > _GIVE_UP_S]
            if old:
                self._say(f"alerts: gave up {len(old)} for {name}")
                self._state.given_up(old)
            due = [item for item in due if item not in old]
            if sink is None or not due:
                continue
            message = AlertMessage(self._run.name, tuple(_item_in(item.item) for item in due))
            try:
                deliver(sink, message)
            except DeliveryError as error:
                wait_s = min(_FIRST_WAIT_S * 2 ** max(item.tries for item in due), _LONGEST_WAIT_S)
                self._state.failed(due, error.message, now_s + wait_s)
                self._say(f"alerts: {name}: {error.message}; again in {wait_s:g} s")
            else:
                self._state.sent(due, message.subject, now_s)
        return len(self._state.waiting())

    def _items(self, rule: Rule, diagnosis: Diagnosis) -> list[AlertItem] | None:
        """What a rule has to say now; None if it cannot be told."""
        if rule.query:
            return self._of_query(rule)
        code = detector_named(rule.code).code if rule.code else ""
        if code and code not in diagnosis.checked and not any(one.code == code for one in _all(diagnosis.findings)):
            return None
        return [
            AlertItem(json.dumps(one.key), rule.name, "new", one.severity.word, one.title, one.next_step,
                 one.subject.clients)
            for one in (_all(diagnosis.findings) if code else diagnosis.findings)
            if one.is_open and one.severity >= rule.least and code in ("", one.code)
            and rule.client in ("", *one.subject.clients)
        ]  # fmt: skip

    def _of_query(self, rule: Rule) -> list[AlertItem] | None:
        try:
            rows = self._run.sql(rule.query, timeout_s=_QUERY_S)
        except QueryError as error:
            self._say(f"alerts: {rule.name}: {error.message}")
            return None
        values = rows.column(rows.num_columns - 1).to_pylist() if rows.num_columns else []
        value = values[-1] if values else None
        if not isinstance(value, int | float | Decimal):
            return None
        value = float(value)
        is_high = rule.above is not None and (value > rule.above or math.isnan(value))
        is_low = rule.below is not None and (value < rule.below or math.isnan(value))
        if not (is_high or is_low):
            return []
        limit = f"above {rule.above:g}" if is_high else f"below {rule.below:g}"
        return [AlertItem("query", rule.name, "new", rule.severity, f"{rule.name}: {value:.6g}, {limit}")]


def _is_silenced(seen: Mapping[str, Silence], key: str) -> bool:
    return key in seen and seen[key].state == "silenced"


def _all(findings: Iterable[Finding]) -> Iterator[Finding]:
    for one in findings:
        yield one
        yield from _all(one.consequences)


def _by_sink(waiting: list[PendingAlert]) -> Iterator[tuple[str, list[PendingAlert]]]:
    for name in dict.fromkeys(item.sink for item in waiting):
        yield name, [item for item in waiting if item.sink == name]


def _item_in(text: str) -> AlertItem:
    value = json.loads(text)
    return AlertItem(**{**value, "clients": tuple(value["clients"])})
