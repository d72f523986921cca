"""A profile for a terminal: the verdict, then bars for rounds and steps, then modules, memory, traffic."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from stethos.cli.screen.spark import bar
from stethos.cli.screen.text import bytes_text, clean, cut, ms_text, plural_text
from stethos.cli.screen.verdict import Line, labelled, query_command, typed
from stethos.profile.bottleneck import Bottleneck
from stethos.profile.memory_use import MemoryUse
from stethos.profile.report import Profile
from stethos.profile.round_time import ROUND_PARTS, RoundTime
from stethos.profile.step_time import STEP_PARTS
from stethos.profile.traffic import Traffic

_MARGIN = 12
_BAR = 26
_MODULES = 4
_MUCH = 0.1  # of the machine, or of a step


def screen_lines(found: Profile, target: str, width: int) -> Iterator[Line]:
    """The whole screen."""
    head = f"run {cut(clean(found.run), 40)} ({found.state}): "
    is_named = bool(found.bottlenecks)
    for place, line in enumerate(_wrapped(head + clean(found.verdict), width)):
        yield Line(line if place == 0 else f"  {line}", "bold yellow" if is_named else "bold green")
    if is_named:
        yield from _bottleneck(found.bottlenecks[0], target, width)
        for one in found.bottlenecks[1:4]:
            yield from _entry("also", one.verdict, width)
    for one_round in found.rounds:
        yield Line("")
        yield from _rounds(one_round, width)
    yield from _steps(found, width)
    yield from _modules(found, width)
    yield Line("")
    yield from _memory(found.memory, width)
    for traffic in found.traffic:
        yield from _traffic(traffic, width)
    if found.compression:
        yield from _compression(found, width)
    if found.missing:
        text = f"not recorded: {', '.join(found.missing)}"
        yield from (Line(line, "dim") for line in textwrap.wrap(text, width, subsequent_indent="  "))


def _bottleneck(one: Bottleneck, target: str, width: int) -> Iterator[Line]:
    yield from _entry("seen", one.evidence, width)
    yield from _entry("next", one.next_step, width)
    yield from typed("sql", query_command(target, one.sql), width, _MARGIN, "dim")


def _rounds(one: RoundTime, width: int) -> Iterator[Line]:
    name = f" of {clean(one.federation)}" if one.federation is not None else ""
    facts = one.as_dict()
    mean_text = "-" if facts["mean_ms"] is None else _time(facts["mean_ms"])
    count_text = plural_text(len(one.numbers), "round")
    yield Line(f"a round{name}: {mean_text} ({count_text}, clients {facts['clients']})", "bold")
    parts = {part: one.mean_ms(part) for part in ROUND_PARTS}
    if facts["clients"] == "in turn":
        parts.pop("wait")
    yield from _bars(parts, facts["mean_ms"], width)
    last: dict[str, int] = {}
    for (client, _), count in one.waited_for.items():
        last[client] = last.get(client, 0) + count
    if last:
        ranked = sorted(last.items(), key=lambda item: -item[1])[:4]
        text = ", ".join(f"{clean(client)} {count}x" for client, count in ranked)
        yield from _entry("came last", text, width)
    for note in one.notes:
        yield from _entry("note", note, width)


def _steps(found: Profile, width: int) -> Iterator[Line]:
    steps = found.all_steps
    if steps is None:
        return
    rate = f", {steps.samples_per_s:,.0f} samples/s" if steps.samples_per_s is not None else ""
    epochs = found.epochs
    epoch = f"; an epoch: {ms_text(epochs.median_ms)} ({epochs.count}x)" if epochs is not None else ""
    yield Line("")
    count = f"mean of {plural_text(steps.steps, 'step')} after warm-up"
    yield Line(f"a step: {_time(steps.mean_ms)} ({count}{rate}){epoch}", "bold")
    parts = {part: steps.parts[part] for part in STEP_PARTS}
    if not found.rounds:
        yield from _bars(parts, steps.mean_ms, width)
        forward = steps.parts["forward"] or 0.0
        if steps.inside is not None and (1 - steps.inside) * forward >= _MUCH * steps.mean_ms:
            inside = _time(steps.inside * forward)
            text = f"forward is the time from the batch (or the last step) to backward; {inside} of it in the model"
            yield from _entry("note", text, width)
        return
    shares = [f"{name} {value / steps.mean_ms:.0%}" for name, value in parts.items() if value is not None]
    unknown = [f"{name} not recorded" for name, value in parts.items() if value is None]
    yield from _entry("", ", ".join([*shares, *unknown]), width)  # one screen: the rounds have the bars


def _bars(parts: Mapping[str, float | None], whole: float | None, width: int) -> Iterator[Line]:
    """A line per part that was recorded, and one for those that were not."""
    for name, value in parts.items():
        if value is None or not whole:
            continue
        share = value / whole
        if name == "other" and share < 0.005:
            continue
        yield Line(f"  {name:{_MARGIN - 2}}{bar(share, _BAR):{_BAR}} {share:>5.0%}  {_time(value)}")
    unknown = [name for name, value in parts.items() if value is None]
    if unknown:
        yield from (Line(line.text, "dim") for line in _entry("", f"not recorded: {', '.join(unknown)}", width))


def _modules(found: Profile, width: int) -> Iterator[Line]:
    if not found.modules:
        return
    shown = [f"{clean(one.short_name)} ({one.share:.0%})" for one in found.modules[:_MODULES] if one.self_ms > 0]
    if shown:
        sampled = plural_text(max(one.samples for one in found.modules), "sampled step")
        yield from _entry("slowest", f"{', '.join(shown)} of forward and backward in {sampled}", width)


def _memory(memory: MemoryUse, width: int) -> Iterator[Line]:
    processor = []
    if memory.cpu_share is not None:
        processor.append(f"{memory.cpu_share:.1f} cores{' a process' if memory.processes > 1 else ''}")
    if memory.machine_cpu_share is not None:
        others = f" (other processes {memory.others_share:.0%})" if (memory.others_share or 0.0) >= _MUCH else ""
        processor.append(f"machine {memory.machine_cpu_share:.0%} busy{others}")
    for gpu in memory.gpus:
        busy = "busy share not recorded" if gpu["busy_share"] is None else f"{gpu['busy_share']:.0%} busy"
        processor.append(f"GPU {gpu['device']} {busy}")
    if processor:
        yield from _entry("processor", ", ".join(processor), width)
    parts = []
    for one in memory.classes:
        if one.bytes or one.peak_bytes:
            growth = one.growth_bytes or 0
            grown = f" (+{bytes_text(growth)})" if growth > 0 else ""
            parts.append(f"{one.name} {bytes_text(one.bytes or 0)}{grown}")
    if parts:
        yield from _entry("memory", ", ".join(parts), width)
    totals = []
    if memory.allocated_bytes is not None and not memory.classes:
        totals.append(f"tensors {bytes_text(memory.allocated_bytes)}")
    if memory.peak_bytes is not None:
        totals.append(f"peak of tensors {bytes_text(memory.peak_bytes)}")
    if memory.rss_bytes is not None:
        totals.append(f"largest process {bytes_text(memory.rss_bytes)}")
    if totals:
        yield from _entry("memory" if not memory.classes else "", ", ".join(totals), width)


def _traffic(one: Traffic, width: int) -> Iterator[Line]:
    parts = []
    if one.sent_bytes is not None:
        parts.append(f"{bytes_text(round(one.per_round(one.sent_bytes) or 0))} up a round")
    elif one.raw_bytes is not None:
        parts.append(f"updates of {bytes_text(round(one.update_bytes or 0))}, sent bytes not recorded")
    if one.received_bytes is not None:
        parts.append(f"{bytes_text(round(one.per_round(one.received_bytes) or 0))} down")
    if one.sent_bytes is not None and one.ok:
        at = "" if one.up_bytes_per_s is None else f" at {bytes_text(round(one.up_bytes_per_s))}/s"
        parts.append(f"{bytes_text(round(one.sent_bytes / one.ok))} a client{at}")
    if one.compression is not None:
        parts.append("uncompressed" if abs(one.compression - 1) < 0.01 else f"compressed {one.compression:.1f}x")
    yield from _entry("traffic", ", ".join(parts) or "not recorded", width)
    lost = [f"{count} {word}" for count, word in ((one.failed, "failed"), (one.dropped, "dropped out"),
                                                  (one.timed_out, "timed out")) if count]  # fmt: skip
    present = "not recorded" if one.availability is None else f"{one.availability:.1%} of those asked answered"
    yield from _entry("clients", f"{one.clients:,}; {present}" + (f": {', '.join(lost)}" if lost else ""), width)


def _compression(found: Profile, width: int) -> Iterator[Line]:
    parts = [
        f"{one.method} {one.ratio:.1f}x smaller, error {one.error:.2g}"
        for one in found.compression
        if one.layer is None and one.error is not None
    ]
    parts = parts or ["measured only on updates that change nothing"]
    yield from _entry("could be", "; ".join(parts), width)


def _entry(word: str, text: str, width: int) -> Iterator[Line]:
    return labelled(word, _wrapped(clean(text), width - _MARGIN), _MARGIN)


def _time(milliseconds: float) -> str:
    """As `ms_text`, with microseconds."""
    return f"{milliseconds * 1e3:.0f} us" if 0 < milliseconds < 0.995 else ms_text(milliseconds)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
