"""PRF001 to PRF007: what makes a training slower than it could be. The sums are done in `profile/`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.system.straggler import Straggler
from stethos.diagnose.time_parts import ROUNDS_READ, STEPS_READ, rounds_in, steps_in
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.profile.bottleneck import (
    Bottleneck,
    batch_bottleneck,
    launch_bottleneck,
    link_bottleneck,
    server_bottleneck,
    told,
)
from stethos.profile.step_time import inside_of
from stethos.profile.what_if import slow_clients


class _Bottleneck:
    """What the detectors of this family share."""

    __slots__ = ()
    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity] = Severity.INFO
    explains: ClassVar[frozenset[str]] = frozenset()

    def _finding(
        self, one: Bottleneck, *, first: int | None, unit: str, confidence: float = 0.9, **evidence: Any
    ) -> Finding:
        """A bottleneck as a finding; `evidence` are the series to draw."""
        return Finding(
            self.code,
            self.name,
            self.name if one.kind in ("slow-link", "slow-client", "more-data") else one.kind,
            self.severity,
            one.verdict,
            Subject(one.clients, one.ranks, one.layers, one.process, first, unit=unit),
            confidence=confidence,
            evidence=(Evidence(one.evidence, one.sql, **evidence),),
            next_step=one.next_step,
            detail={"share": one.share, **one.detail},
        )


@dataclass(frozen=True, slots=True)
class ComputeBound(_Bottleneck):
    """Steps spend nearly all their time in forward and backward.

    What it looks at: the share of `forward_ms` and `backward_ms` in `step_ms`, per process, where steps are long enough
    for that to matter. On a CPU, sampled modules tell whether that time is spent in the model at all.

    Why it matters: it says where not to look: data, network and optimizer are fast enough. Only less computation, or
    faster computation, helps.

    Not a fault when: always. Informational, no action needed: it saves you from tuning the data loader.

    Next step: see which modules take the time with `stethos profile --by module`; try mixed precision or
    `torch.compile`.
    """

    code: ClassVar[str] = "PRF001"
    name: ClassVar[str] = "compute-bound"
    needs: ClassVar[Needs] = {"steps": frozenset({"process", "step_ms", "forward_ms", "backward_ms"})}
    reads: ClassVar[Needs] = {
        "steps": STEPS_READ["steps"] | {"model"},
        "modules": frozenset({"process", "step", "module", "stage", "duration_ms"}),
        "memory": frozenset({"process", "device"}),
    }

    share: float = threshold(0.9, "share of a step that is forward and backward")
    at_least_ms: float = threshold(50.0, "milliseconds of a step")
    steps: int = threshold(100, "steps")
    inside: float = threshold(0.5, "share of forward that is spent inside of the model")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in steps_in(window):
            part = one.share("forward", "backward")
            if one.steps < self.steps or one.mean_ms < self.at_least_ms or not part >= self.share or math.isnan(part):
                continue
            if window.derive(_inside).get(one.process, 1.0) < self.inside:
                continue  # most of forward is the program's own code, which `stethos profile` names
            found = Bottleneck(
                self.name,
                f"steps are compute-bound: {part:.0%} of {one.mean_ms:,.0f} ms are forward and backward",
                f"{one.parts['forward'] or 0.0:,.1f} ms forward and {one.parts['backward'] or 0.0:,.1f} ms "
                f"backward per step, over {one.steps:,} steps",
                "SELECT process, avg(forward_ms) AS forward_ms, avg(backward_ms) AS backward_ms, "
                "avg(step_ms) AS step_ms FROM steps GROUP BY process",
                "see which modules take the time: `stethos profile --by module`",
                part,
                process=one.process,
            )
            yield self._finding(found, first=0, unit="step")


def _inside(window: Window) -> dict[str, float]:
    """Of forward, the share inside the model, by process; not those on a GPU, where modules are timed by the host."""
    memory = window.frame("memory")
    columns = [memory[name].tolist() for name in ("process", "device")] if len(memory) else [[], []]
    on_gpu = {name for name, device in zip(*columns, strict=True) if isinstance(device, str) and device != "cpu"}
    found = inside_of(window.frame("steps"), window.frame("modules"))
    return {name: share for name, share in found.items() if name not in on_gpu}


@dataclass(frozen=True, slots=True)
class CommunicationBound(_Bottleneck):
    """Most of a round goes into sending and receiving, at the typical client.

    What it looks at: download and upload of the client with the median turn, against the duration of the round. Where
    one layer makes up most of an update's elements, it is named.

    Why it matters: faster clients change nothing; smaller updates, or fewer rounds with more local work, do.

    Not a fault when: links are slow by nature and the model is as small as it can be.

    Next step: `stethos.federation(..., measure_compression=True)` measures what fp16, int8, top-k and low rank
    would save and lose; more local epochs spread the same traffic over more training.
    """

    code: ClassVar[str] = "PRF002"
    name: ClassVar[str] = "communication-bound"
    needs: ClassVar[Needs] = {
        "rounds": frozenset({"round", "duration_ms"}),
        "client_rounds": frozenset({"client", "round", "upload_ms"}),
    }
    reads: ClassVar[Needs] = {**ROUNDS_READ, "updates": frozenset({"client", "layer", "size", "round"})}

    share: float = threshold(0.6, "share of a round that is transfer")
    at_least_ms: float = threshold(20.0, "milliseconds of it")
    rounds: int = threshold(3, "rounds")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in rounds_in(window):
            if len(one.numbers) < self.rounds:
                continue
            if link_bottleneck(one, (), self.share, self.at_least_ms) is None:
                continue  # before the sizes are looked up: updates are many
            found = link_bottleneck(one, _sizes(window), self.share, self.at_least_ms)
            if found is not None:
                links = np.nan_to_num(one.parts["download"]) + np.nan_to_num(one.parts["upload"])
                yield self._finding(
                    found, first=one.numbers[0], unit="round", series=numbers(links), others=numbers(one.duration_ms)
                )


def _sizes(window: Window) -> list[tuple[str, float]]:
    """The layers of an update with their share of its elements, the largest first."""
    frame = window.frame("updates")
    if not len(frame) or "size" not in frame or frame["size"].dtype.kind != "f":
        return []
    sizes: dict[str, float] = {}
    for layer, client, size in zip(frame["layer"].tolist(), frame["client"].tolist(), frame["size"], strict=True):
        if layer is not None and client is not None and size == size:
            sizes[str(layer)] = float(size)
    total = sum(sizes.values()) or 1.0
    return sorted(((name, size / total) for name, size in sizes.items()), key=lambda item: -item[1])


@dataclass(frozen=True, slots=True)
class AggregationBound(_Bottleneck):
    """The server's own work, aggregation or evaluation, takes a large part of each round.

    What it looks at: `aggregate_ms` and `evaluate_ms` against the duration of the rounds.

    Why it matters: every client waits for it, however fast the client is.

    Not a fault when: the rounds are so short that nothing is gained (parts below `at_least_ms` are not counted).

    Next step: aggregate updates as they come in, evaluate on fewer samples or every few rounds.
    """

    code: ClassVar[str] = "PRF003"
    name: ClassVar[str] = "aggregation-bound"
    needs: ClassVar[Needs] = {"rounds": frozenset({"round", "duration_ms"})}
    reads: ClassVar[Needs] = ROUNDS_READ

    share: float = threshold(0.3, "share of a round that is the server's own work")
    at_least_ms: float = threshold(50.0, "milliseconds of it")
    rounds: int = threshold(3, "rounds")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in rounds_in(window):
            if len(one.numbers) < self.rounds:
                continue
            found = server_bottleneck(one, self.share, self.at_least_ms)
            if found is not None:
                part = one.parts["aggregate" if found.kind == self.name else "evaluate"]
                yield self._finding(
                    found, first=one.numbers[0], unit="round", series=numbers(part), others=numbers(one.duration_ms)
                )


@dataclass(frozen=True, slots=True)
class CriticalClient(_Bottleneck):
    """Rounds would be much shorter if one client were as fast as the others.

    What it looks at: the critical path of each round: the last client, and what the round would have taken if its
    download, training or upload had been at the others' median. Clients that `straggler` already names are left out.

    Why it matters: it shows how much there is to gain before you look for a faster machine or link.

    Not a fault when: the client has more samples than the others; then it says so.

    Next step: look at the phase it names; give the client less local work, or set a deadline.
    """

    code: ClassVar[str] = "PRF004"
    name: ClassVar[str] = "critical-client"
    needs: ClassVar[Needs] = {
        "rounds": frozenset({"round", "duration_ms"}),
        "client_rounds": frozenset({"client", "round", "duration_ms"}),
    }
    reads: ClassVar[Needs] = ROUNDS_READ

    times: float = threshold(1.8, "times the usual duration of a turn")
    share: float = threshold(0.15, "share of the rounds' time that would be saved")
    rounds: int = threshold(3, "rounds")
    at_least_ms: float = threshold(50.0, "milliseconds beyond the usual turn")

    def check(self, window: Window) -> Iterator[Finding]:
        named = {client for finding in Straggler().check(window) for client in finding.subject.clients}
        for one in rounds_in(window):
            slow = slow_clients(one, self.times) if len(one.numbers) >= self.rounds else None
            if slow is None or slow.share < self.share or named & set(slow.clients):
                continue
            if slow.own_ms - slow.usual_ms >= self.at_least_ms:
                yield self._finding(told(one, slow), first=one.numbers[0], unit="round")


@dataclass(frozen=True, slots=True)
class SmallBatches(_Bottleneck):
    """Steps handle so few samples that their fixed cost dominates.

    What it looks at: samples per step, and the share of a step that does not depend on them: the optimizer, and what is
    neither data nor forward nor backward.

    Why it matters: a batch twice as large would take far less than twice as long.

    Not a fault when: the batch is small on purpose, for generalisation or memory.

    Next step: try a batch twice as large, and scale the learning rate with it.
    """

    code: ClassVar[str] = "PRF005"
    name: ClassVar[str] = "small-batches"
    needs: ClassVar[Needs] = {"steps": frozenset({"process", "step_ms", "samples", "optimizer_ms"})}
    reads: ClassVar[Needs] = STEPS_READ

    samples: int = threshold(8, "samples of a step, at most")
    share: float = threshold(0.4, "share of a step that its fixed cost takes")

    def check(self, window: Window) -> Iterator[Finding]:
        found = batch_bottleneck(steps_in(window), self.samples, self.share)
        if found is not None:
            yield self._finding(found, first=0, unit="step", confidence=0.7)


@dataclass(frozen=True, slots=True)
class LaunchBound(_Bottleneck):
    """The GPU is often idle although steps do not wait for data: it waits for kernels to be launched.

    What it looks at: the share of time in which a kernel ran, on GPUs that the training uses, and the length of steps.

    Why it matters: launching a kernel takes the program some microseconds; with many small kernels the GPU finishes
    each before the next one comes.

    Not a fault when: the step is short because the model is small, and its speed does not matter.

    Next step: larger batches, `torch.compile`, CUDA graphs, or `fused=True` for the optimizer.
    """

    code: ClassVar[str] = "PRF006"
    name: ClassVar[str] = "launch-bound"
    needs: ClassVar[Needs] = {
        "steps": frozenset({"process", "step_ms"}),
        "gpu": frozenset({"device", "busy_share"}),
    }
    reads: ClassVar[Needs] = STEPS_READ

    busy: float = threshold(0.5, "share of the time that the GPU is busy")
    step_ms: float = threshold(50.0, "milliseconds of a step, at most")
    samples: int = threshold(10, "samples of the GPU")

    def check(self, window: Window) -> Iterator[Finding]:
        frame = window.frame("gpu")
        if not len(frame) or "busy_share" not in frame or frame["busy_share"].dtype.kind != "f":
            return
        busy = frame["busy_share"][np.isfinite(frame["busy_share"])]
        if len(busy) < self.samples:
            return
        found = launch_bottleneck(steps_in(window), [{"busy_share": float(busy.mean())}], self.busy, self.step_ms)
        if found is not None:
            yield self._finding(found, first=0, unit="step", confidence=0.7, series=numbers(busy))


@dataclass(frozen=True, slots=True)
class UnevenRanks(_Bottleneck):
    """The ranks of a distributed job handle different numbers of samples per step.

    What it looks at: the median number of samples per step of each rank.

    Why it matters: the ranks wait for each other in every step, so that all of them take as long as the one with the
    most. A gradient that is the mean over ranks then also weighs samples unequally.

    Not a fault when: lengths of samples differ, and batches are made equal in tokens rather than in number.

    Next step: use a `DistributedSampler` and the same batch size on every rank; compare `stethos profile --by rank`.
    """

    code: ClassVar[str] = "PRF007"
    name: ClassVar[str] = "uneven-ranks"
    needs: ClassVar[Needs] = {"steps": frozenset({"process", "rank", "samples", "step_ms"})}
    reads: ClassVar[Needs] = STEPS_READ

    times: float = threshold(1.3, "times as many samples per step")
    steps: int = threshold(20, "steps")

    def check(self, window: Window) -> Iterator[Finding]:
        known = {one.rank: one for one in steps_in(window) if one.rank is not None and one.samples}
        if len(known) < 2 or min(one.steps for one in known.values()) < self.steps:
            return
        most = max(known, key=lambda rank: known[rank].samples or 0.0)
        least = min(known, key=lambda rank: known[rank].samples or 0.0)
        high, low = known[most].samples or 0.0, known[least].samples or 1.0
        if high < self.times * low:
            return
        found = Bottleneck(
            self.name,
            f"rank {most} handles {high:.0f} samples per step, rank {least} only {low:.0f}",
            f"{high / low:.1f} times as many, over {known[most].steps:,} steps",
            "SELECT rank, median(samples) AS samples, median(step_ms) AS step_ms FROM steps GROUP BY rank "
            "ORDER BY rank",
            "use a DistributedSampler and the same batch size on every rank",
            1 - low / high,
            ranks=(most,),
            detail={"times": high / low},
        )
        yield self._finding(found, first=0, unit="step")
