"""What it costs a training to record at a site whose rows leave, with a collector and without one."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import Child
from benchmarks.collecting import collector
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from stethos.collect.site import make_site, own_key
from stethos.web.keys import open_keys

_PLACES = ("recorded", "at a site, sent", "at a site, collector gone", "at a site, collector hangs")
_SHARE_TARGET, _EXIT_TARGET_MS, _DISK_TARGET_MB = 0.01, 1000.0, 64.0
_ROUNDS, _CHUNKS, _STEPS = 3, 6, 120
_DRAIN_S = 20.0
_GRANT = 'level = "L4"\nuntil = {}\n'


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    """The training in each place, in turns."""
    rounds = 1 if scale.is_quick else _ROUNDS
    found: dict[str, list[dict[str, Any]]] = {place: [] for place in _PLACES}
    for number in range(rounds):
        say(f"site: round {number + 1} of {rounds}")
        for place in _PLACES:
            with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as name:
                found[place].append(_trained(Path(name), place))
    rows = []
    plain_cpu = _median(found["recorded"], "cpu_us")
    plain_exit = _middle(one["exit_ms"] for one in found["recorded"])
    for place in _PLACES:
        cpu, wall = _median(found[place], "cpu_us"), _median(found[place], "wall_us")
        exit_ms = _middle(one["exit_ms"] for one in found[place])
        share, later = cpu / plain_cpu - 1, exit_ms - plain_exit
        disk_mb = max(one["disk_mb"] for one in found[place])
        rows.append([
            place, f"{cpu:.0f}", f"{wall:.0f}", f"{100 * share:+.2f} %", f"{exit_ms:.0f}", f"{later:+.0f}",
            f"{_middle(one['drainer_share'] for one in found[place]):.3f}", f"{disk_mb:.1f}",
            "" if place == "recorded" else verdict(max(share / _SHARE_TARGET, later / _EXIT_TARGET_MS,
                                                       disk_mb / _DISK_TARGET_MB), 1.0),
        ])  # fmt: skip
    titles = ["CNN on 28x28 images", "CPU of a step, us", "wall, us", "beyond recording (1 %)", "exit, ms",
              "later (1,000)", "drainer, share of a core", "spool at most, MB (64)", "reached"]  # fmt: skip
    note = (
        f"{rounds} x {_CHUNKS} chunks of {_STEPS} steps in processes of their own, in turns; medians. The policy lets "
        "everything through (L4). Gone: connections are refused. Hangs: they are taken, and never answered."
    )
    return [Grid("A training at a site", titles, rows, [note])]


def _trained(directory: Path, place: str) -> dict[str, Any]:
    site = directory / "site"
    key = own_key(site)
    keys = open_keys(directory / "keys")
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    (site / "policy.toml").write_text(_GRANT.format(until))
    if place == "at a site, sent":
        with collector(directory, [key]) as (_, port):
            make_site(site, "c0", f"127.0.0.1:{port}", keys.fingerprint)
            return _child(directory, site)
    if place == "recorded":
        return _child(directory, None)
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        if place == "at a site, collector hangs":
            held.listen(16)
        make_site(site, "c0", f"127.0.0.1:{port}", keys.fingerprint)
        return _child(directory, site)


def _child(directory: Path, site: Path | None) -> dict[str, Any]:
    runs = directory / "plain" if site is None else site / "runs"
    job = {"workload": "cnn", "variant": "standard", "directory": str(runs), "warmup": 50, "limit_s": 60,
           "chunks": _CHUNKS, "steps": _STEPS}  # fmt: skip
    more = {} if site is None else {"STETHOS_SITE": str(site)}
    seen: dict[str, float] = {"cpu_s": 0.0, "disk_mb": 0.0}
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(str(directory), site, seen, over.is_set), daemon=True)
    began = time.monotonic()
    watcher.start()
    found: dict[str, Any] = Child("trainer", job, more).finish()
    wall_s = time.monotonic() - began
    until = time.monotonic() + _DRAIN_S
    while _drainer_of(str(directory)) is not None and time.monotonic() < until:
        time.sleep(0.1)
    over.set()
    watcher.join()
    return {**found, "drainer_share": seen["cpu_s"] / wall_s, "disk_mb": seen["disk_mb"]}


def _watch(directory: str, site: Path | None, seen: dict[str, float], is_over: Callable[[], bool]) -> None:
    """What the drainer used, and how large the spool was."""
    drainer: psutil.Process | None = None
    while not is_over():
        time.sleep(0.25)
        try:
            drainer = drainer or _drainer_of(directory)
            if drainer is not None:
                seen["cpu_s"] = sum(drainer.cpu_times()[:2])
        except psutil.Error:
            drainer = None
        if site is not None:
            sizes = (path.stat().st_size for path in (site / "spool").rglob("*.spool") if path.exists())
            try:
                seen["disk_mb"] = max(seen["disk_mb"], sum(sizes) / 1e6)
            except OSError:  # sent meanwhile
                continue


def _drainer_of(directory: str) -> psutil.Process | None:
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or [""]
        if any("stethos.record.drainer" in word for word in words) and words[-1].startswith(directory):
            return one
    return None


def _median(found: list[dict[str, Any]], name: str) -> float:
    return statistics.median(value for one in found for value in one[name])


def _middle(values: Any) -> float:
    return statistics.median(values)
