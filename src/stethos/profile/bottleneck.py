"""What holds a training up: each with its share of the time, the evidence, the SQL, and what to do about it.

`share` is what would be saved: how much shorter rounds (or steps) would be. Where rounds are recorded, what
happens inside of steps counts only as far as rounds compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from stethos.profile.column import known_or_none
from stethos.profile.memory_use import Growth, KeptByLine
from stethos.profile.round_time import RoundTime
from stethos.profile.step_time import StepTime
from stethos.profile.what_if import Slowness, shortened_ms, slow_clients
from stethos.store.literal import literal

_AT_LEAST = 0.1  # of the time: less is not worth a word
_PART = 0.1  # of a growth, at least, for a line to be named
_FEWEST_KEPT = 3  # samples, where memory as a whole is not seen to grow
_LEAK_BYTES = 20e6  # over all steps, at least, in the same case
_WORDS = {"upload": "upload", "download": "download", "link": "link", "compute": "training"}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One thing that holds the training up.

    `kind` is one of slow-link, slow-client, more-data, missing-clients, communication-bound, big-layer,
    aggregation-bound, evaluation-bound, input-bound, own-code, slow-rank, launch-bound, small-batches, leak. `is_hint`
    where it is advice rather than trouble.
    """

    kind: str
    verdict: str
    evidence: str
    sql: str
    next_step: str
    share: float | None
    clients: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()
    process: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    is_hint: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def where_of(one: RoundTime) -> str:
    """The WHERE clause for a federation's rows; "" where there is only one."""
    return "" if one.federation is None else f"WHERE federation = {literal(one.federation)} "


# Rounds ------------------------------------------------------------------------------------------------


def client_bottleneck(one: RoundTime) -> Bottleneck | None:
    """Clients that everybody waits for."""
    slow = slow_clients(one)
    if slow is None or slow.share < _AT_LEAST:
        return None
    return told(one, slow)


def told(one: RoundTime, slow: Slowness) -> Bottleneck:
    """A slowness in words."""
    who, what = names_of(slow.clients), _WORDS[slow.what]
    its, it = ("its", "it") if len(slow.clients) == 1 else ("their", "them")
    possessive = f"{who}'{'' if who.endswith('s') else 's'}"
    at = {"compute": "the median training time"}.get(slow.what, f"the median {what}")
    column = f"{slow.what}_ms" if slow.what != "link" else "download_ms + upload_ms"
    kind = "slow-client" if slow.what == "compute" else "slow-link"
    why = ""
    if slow.is_explained_by_samples:
        kind, why = "more-data", f"; {slow.samples_times:.1f} times as many samples"
    steps = {
        "slow-link": f"look at the link of {who}; compress {its} updates, or set a deadline",
        "slow-client": f"look at the machine of {who}; give {it} less local work, or set a deadline",
        "more-data": f"let {who} train on a part of {its} samples per round, or fewer epochs",
    }
    return Bottleneck(
        kind,
        f"{possessive} {what}: rounds would be {slow.share:.0%} shorter at {at}",
        f"{its} {what} takes {slow.own_ms:,.0f} ms a round, that of the others {slow.usual_ms:,.0f} ms "
        f"({slow.times:.1f} times){why}",
        f"SELECT client, median({column}) AS ms, median(duration_ms) AS turn_ms FROM client_rounds "
        f"{where_of(one)}GROUP BY client ORDER BY ms DESC",
        steps[kind],
        slow.share,
        clients=slow.clients,
        detail={"what": slow.what, "times": slow.times},
    )


def missing_bottleneck(one: RoundTime) -> Bottleneck | None:
    """Rounds that wait for clients which never answer."""
    trips = one.trips
    if trips is None or not trips.is_late.any():
        return None
    late = (one.place >= 0) & np.asarray(trips.is_late.any(axis=0))[one.place]
    usual = np.median(one.duration_ms[~late]) if (~late).any() else np.nan
    needed = np.nansum(np.stack([one.parts[name] for name in one.parts if name not in ("wait", "other")]), axis=0)
    base = usual if math.isfinite(usual) else float(np.median(needed[late]))
    saved = np.nansum(np.fmax(one.duration_ms[late] - base, 0.0))
    share = float(saved / one.total_ms) if one.total_ms > 0 else 0.0
    clients = tuple(name for name, row in zip(trips.clients, trips.is_late, strict=True) if row.any())
    if share < _AT_LEAST:
        return None
    return Bottleneck(
        "missing-clients",
        f"{names_of(clients)} did not answer: rounds would be {share:.0%} shorter without waiting for that",
        f"{int(late.sum())} of {len(one.numbers)} rounds lasted until the deadline",
        f"SELECT round, client, status, error FROM client_rounds {where_of(one) or 'WHERE '}"
        f"{'AND ' if one.federation is not None else ''}status = 'timeout' ORDER BY round",
        "ask fewer clients than you need and stop at the first answers, or shorten the deadline",
        share,
        clients=clients,
    )


def server_bottleneck(one: RoundTime, share: float = 0.3, at_least_ms: float = 20.0) -> Bottleneck | None:
    """A server that keeps its clients waiting: aggregation, or evaluation."""
    for name, kind, limit in (("aggregate", "aggregation-bound", share), ("evaluate", "evaluation-bound", share + 0.1)):
        part, mean_ms = one.share(name), one.mean_ms(name)
        if mean_ms is None or not part >= limit or mean_ms < at_least_ms:
            continue
        doing = "aggregation" if name == "aggregate" else "evaluation"
        advice = {
            "aggregate": "aggregate updates as they come in, on more threads or a GPU, or in lower precision",
            "evaluate": "evaluate on fewer samples, every few rounds, or while clients already train",
        }
        return Bottleneck(
            kind,
            f"the server's {doing} takes {part:.0%} of each round, while every client waits",
            f"{mean_ms:,.0f} ms of {one.total_ms / max(1, len(one.numbers)):,.0f} ms per round; in half that time, "
            f"rounds would be {part / 2:.0%} shorter",
            f"SELECT round, duration_ms, {name}_ms FROM rounds {where_of(one)}ORDER BY round",
            advice[name],
            part,
            detail={"ms": mean_ms},
        )
    return None


def link_bottleneck(
    one: RoundTime, layers: Sequence[tuple[str, float]] = (), share: float = 0.6, at_least_ms: float = 20.0
) -> Bottleneck | None:
    """Rounds that mostly send and receive; `layers` are the largest with their share of an update's bytes."""
    trips, part = one.trips, one.share("download", "upload")
    if trips is None or not part >= share:
        return None
    links = (one.mean_ms("download") or 0.0) + (one.mean_ms("upload") or 0.0)
    if links < at_least_ms:
        return None
    half = sum(np.nan_to_num(trips.phase_ms[name]) for name in ("download", "upload")) / 2
    saved = float(np.nansum(shortened_ms(one, trips, trips.turn_ms - half)) / one.total_ms)
    big = next(((name, size) for name, size in layers if size >= share), None) if len(layers) > 2 else None
    return Bottleneck(
        "communication-bound" if big is None else "big-layer",
        f"links take {part:.0%} of each round: rounds would be {saved:.0%} shorter with half the bytes"
        if big is None
        else f"layer {big[0]} is {big[1]:.0%} of every update, and links take {part:.0%} of each round",
        f"{links:,.0f} ms of {one.total_ms / max(1, len(one.numbers)):,.0f} ms per round at the typical client; half "
        f"the bytes would make rounds {saved:.0%} shorter",
        "SELECT round, median(download_ms) AS download_ms, median(compute_ms) AS compute_ms, median(upload_ms) AS "
        f"upload_ms FROM client_rounds {where_of(one)}GROUP BY round ORDER BY round",
        f"{'train longer between rounds' if big is None else 'make that layer smaller (fewer units, low rank)'}, or "
        "compress: `federation(measure_compression=True)` measures what that costs",
        saved,
        layers=() if big is None else (big[0],),
        detail={"link_share": part},
    )


# Steps -------------------------------------------------------------------------------------------------


def input_bottleneck(times: Sequence[StepTime], share: float = 0.25, at_least_ms: float = 2.0) -> Bottleneck | None:
    """Steps that wait for their data; the process that waits most."""
    waiting = [one for one in times if one.share("data") >= share and (one.parts["data"] or 0.0) >= at_least_ms]
    if not waiting:
        return None
    one = max(waiting, key=lambda time: time.share("data"))
    part = one.share("data")
    where = f" on rank {one.rank}" if one.rank is not None and len(waiting) < len(times) else ""
    return Bottleneck(
        "input-bound",
        f"the data loader{where}: steps would be {part:.0%} shorter if batches were ready in time",
        f"{one.parts['data']:,.1f} ms of {one.mean_ms:,.1f} ms per step are a wait for data",
        "SELECT process, avg(step_ms) AS step_ms, avg(data_ms) AS data_ms FROM steps GROUP BY process",
        "give the DataLoader more workers (num_workers=, persistent_workers=True), or cache samples",
        part,
        ranks=() if one.rank is None else (one.rank,),
        process=one.process,
    )


def own_code_bottleneck(times: Sequence[StepTime], share: float = 0.5, at_least_ms: float = 5.0) -> Bottleneck | None:
    """Steps that mostly run the program's own code around the model; the process in which that takes longest."""
    one = max(times, key=lambda time: time.outside_ms / time.mean_ms if time.mean_ms else 0.0, default=None)
    if one is None or one.parts["forward"] is None or one.outside_ms < at_least_ms:
        return None
    part = one.outside_ms / one.mean_ms
    if part < share:
        return None
    evidence = f"{one.outside_ms:,.1f} ms of {one.mean_ms:,.1f} ms per step lie outside of all of these"
    if one.inside is not None and (1 - one.inside) * one.parts["forward"] > (one.parts["other"] or 0.0):
        evidence = (
            f"{one.parts['forward']:,.1f} ms of {one.mean_ms:,.1f} ms per step lie before backward, only "
            f"{one.inside * one.parts['forward']:,.1f} ms of them in the model"
        )
    return Bottleneck(
        "own-code",
        f"the program's own code takes {part:.0%} of a step: neither data loader nor model, backward or optimizer",
        evidence,
        "SELECT process, avg(step_ms) AS step_ms, avg(data_ms) AS data_ms, avg(forward_ms) AS forward_ms, "
        "avg(backward_ms) AS backward_ms, avg(optimizer_ms) AS optimizer_ms FROM steps GROUP BY process",
        "`stethos flame`, while it runs, shows which function; prepare batches in a DataLoader with workers",
        part,
        process=one.process,
        is_hint=True,
    )


def rank_bottleneck(times: Sequence[StepTime], share: float = 0.1) -> Bottleneck | None:
    """A rank that does its own part more slowly while the others wait for it in backward."""
    ranks = {one.rank: one for one in times if one.rank is not None and one.parts["backward"] is not None}
    if len(ranks) < 2:
        return None
    own = {rank: one.mean_ms - (one.parts["backward"] or 0.0) for rank, one in ranks.items()}
    culprit = max(own, key=lambda rank: own[rank])
    others = [rank for rank in own if rank != culprit]
    usual = float(np.median([own[rank] for rank in others]))
    waited = min(ranks[rank].parts["backward"] or 0.0 for rank in others) - (ranks[culprit].parts["backward"] or 0.0)
    step_ms = float(np.median([one.mean_ms for one in ranks.values()]))
    score = min(own[culprit] - usual, waited) / step_ms if step_ms > 0 else 0.0
    if score < share:
        return None
    over = {
        name: (ranks[culprit].parts[name] or 0.0)
        - float(np.median([ranks[rank].parts[name] or 0.0 for rank in others]))
        for name in ("data", "forward", "optimizer", "other")
    }
    part = max(over, key=lambda name: over[name])
    return Bottleneck(
        "slow-rank",
        f"rank {culprit}'s {part}: steps would be {score:.0%} shorter if it were like the others",
        f"it works {own[culprit]:,.1f} ms before the exchange, the others {usual:,.1f} ms; they wait in backward",
        "SELECT rank, avg(data_ms) AS data_ms, avg(forward_ms) AS forward_ms, avg(backward_ms) AS backward_ms, "
        "avg(step_ms) AS step_ms FROM steps GROUP BY rank ORDER BY rank",
        f"compare the machine of rank {culprit} with the others: clock, other jobs, disk, data loader",
        score,
        ranks=(culprit,),
        process=ranks[culprit].process,
        detail={"part": part},
    )


def batch_bottleneck(times: Sequence[StepTime], samples: int = 8, share: float = 0.4) -> Bottleneck | None:
    """Steps on so few samples that what a step costs in any case prevails."""
    for one in times:
        fixed = one.share("optimizer", "other")
        if one.samples is None or one.samples > samples or not fixed >= share or one.steps < 100:
            continue
        return Bottleneck(
            "small-batches",
            f"{one.samples:.0f} samples per step: {fixed:.0%} of a step does not depend on them",
            f"optimizer and overhead take {fixed * one.mean_ms:,.2f} ms of {one.mean_ms:,.2f} ms",
            "SELECT process, median(samples) AS samples, avg(optimizer_ms) AS optimizer_ms, avg(step_ms) AS step_ms "
            "FROM steps GROUP BY process",
            "try a batch twice as large, and scale the learning rate with it",
            fixed / 2,
            process=one.process,
            is_hint=True,
        )
    return None


def launch_bottleneck(
    times: Sequence[StepTime], gpus: Sequence[dict[str, Any]], busy: float = 0.5, step_ms: float = 50.0
) -> Bottleneck | None:
    """A GPU that waits for the program to give it work: short steps, and the GPU is idle between kernels."""
    known = [gpu for gpu in gpus if gpu.get("busy_share") is not None]
    if not known or not times:
        return None
    share = max(float(gpu["busy_share"]) for gpu in known)
    one = min(times, key=lambda time: time.mean_ms)
    data = one.share("data")
    if share >= busy or one.mean_ms > step_ms or (math.isfinite(data) and data >= 0.25):
        return None
    return Bottleneck(
        "launch-bound",
        f"the GPU is busy {share:.0%} of the time: steps of {one.mean_ms:,.1f} ms are spent launching kernels",
        f"{one.steps} steps without a wait for data, and a GPU that is idle {1 - share:.0%} of the time",
        "SELECT process, avg(forward_ms) AS forward_ms, avg(backward_ms) AS backward_ms, avg(step_ms) AS step_ms "
        "FROM steps GROUP BY process",
        "larger batches, `torch.compile`, CUDA graphs, or `fused=True` for the optimizer",
        1 - share,
        process=one.process,
        is_hint=True,
    )


def leak_bottleneck(growth: Growth | None, kept: KeptByLine | None = None) -> Bottleneck | None:
    """Memory that keeps growing. It costs no time until it costs the process."""
    if growth is not None:
        return _growing(growth, kept)
    if kept is None or kept.samples < _FEWEST_KEPT or kept.step_bytes * kept.steps < _LEAK_BYTES:
        return None
    holder = f", kept by {kept.holder}" if kept.holder else ""
    return Bottleneck(
        "leak",
        f"tensors made at {kept.line} stay alive{holder}: {kept.step_bytes / 1e6:,.2f} MB of every step",
        f"in {kept.samples} samples; about {kept.step_bytes * kept.steps / 1e6:,.0f} MB over {kept.steps:,} steps",
        "SELECT step, line, holder, allocated_bytes, bytes FROM memory WHERE line IS NOT NULL ORDER BY step",
        "keep numbers (`loss.item()`) or detached copies instead of tensors",
        None,
        process=kept.process,
        detail={"line": kept.line},
    )


def _growing(growth: Growth, kept: KeptByLine | None) -> Bottleneck:
    """A process whose memory grows, with the line that keeps tensors alive if these are a good part of it."""
    grown = growth.end_bytes - growth.start_bytes
    if kept is not None and (kept.process != growth.process or kept.step_bytes * kept.steps < _PART * grown):
        kept = None  # a list of losses is not what grows here
    at = "" if kept is None else f": tensors made at {kept.line} stay alive"
    advice = "look for what is kept across steps: losses with their graph, outputs in lists, caches"
    if kept is not None:
        advice = f"keep numbers (`loss.item()`) or detached copies, or fewer of them: see {kept.holder or kept.line}"
    left = ""
    if growth.free_bytes is not None and growth.left_s is not None:
        left = f"; {growth.free_bytes / 1e9:,.1f} GB free on the machine last {_span(growth.left_s)} at this rate"
    return Bottleneck(
        "leak",
        f"memory of process {growth.process} grows by {growth.bytes_per_s * 60 / 1e6:,.0f} MB a minute{at}",
        f"from {growth.start_bytes / 1e9:.2f} GB to {growth.end_bytes / 1e9:.2f} GB "
        f"(+{grown / growth.start_bytes:.0%}) in the second half of its training{left}",
        f"SELECT t_ns, rss_bytes FROM host WHERE process = {literal(growth.process)} ORDER BY t_ns",
        advice,
        None,
        process=growth.process,
        detail={"bytes_per_s": growth.bytes_per_s, "left_s": growth.left_s, "line": kept and kept.line},
    )


def _span(seconds: float) -> str:
    """A time to come, roughly: `40 minutes`, `3 hours`."""
    for size, word in ((86400, "days"), (3600, "hours")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {word}"
    return f"{max(1, round(seconds / 60))} minute{'' if round(seconds / 60) <= 1 else 's'}"


# All ---------------------------------------------------------------------------------------------------


def bottlenecks_of(
    rounds: Sequence[RoundTime],
    steps: Sequence[StepTime],
    layers: Sequence[tuple[str, float]] = (),
    growth: Growth | None = None,
    gpus: Sequence[dict[str, Any]] = (),
    kept: KeptByLine | None = None,
) -> list[Bottleneck]:
    """Everything that holds the training up, what costs most first, then memory, which has no share, then hints."""
    found: list[Bottleneck | None] = []
    computing = 1.0
    for one in rounds:
        found += [client_bottleneck(one), missing_bottleneck(one), server_bottleneck(one), link_bottleneck(one, layers)]
        share = known_or_none(one.share("compute"))
        computing = min(computing, 1.0 if share is None else share)
    loader, rank = input_bottleneck(steps), rank_bottleneck(steps)
    if loader is not None and rank is not None and rank.ranks == loader.ranks and rank.detail["part"] == "data":
        rank = None  # said already
    inside = [loader, rank, own_code_bottleneck(steps), batch_bottleneck(steps), launch_bottleneck(steps, gpus)]
    for part in inside:
        if part is not None and part.share is not None and part.share * computing >= _AT_LEAST:
            found.append(replace(part, share=part.share * computing))
    found.append(leak_bottleneck(growth, kept))
    known = [one for one in found if one is not None]
    return sorted(known, key=lambda one: (one.is_hint, -(one.share or 0.0)))


def names_of(clients: Sequence[str]) -> str:
    """`client c7`, `clients c1, c2 and 3 more`."""
    shown = ", ".join(clients[:3]) + (f" and {len(clients) - 3} more" if len(clients) > 3 else "")
    return f"client{'' if len(clients) == 1 else 's'} {shown}"
