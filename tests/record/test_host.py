"""Samples of a process from outside: the first one, too, is a measurement."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import psutil
import pytest

from stethos.record import host
from stethos.record.host import HostSampler


def test_the_first_sample_counts_from_the_start_of_the_process() -> None:
    """psutil alone says 0 until it has something to compare with."""
    first = HostSampler().sample(os.getpid())
    assert first is not None and first["rss_bytes"] > 0
    assert 0 < first["cpu_share"] <= (psutil.cpu_count() or 1)


def test_processes_sampled_together_have_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil counts since it was asked last: asked again at once, it would say that the machine is idle, or full."""
    monkeypatch.setattr(host, "_MACHINE_S", 1000.0)  # however long it takes to come to the second
    sampler = HostSampler()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = [sampler.sample(pid) for pid in (os.getpid(), child.pid)]
    assert found[0] is not None and found[1] is not None
    assert found[0]["machine_cpu_share"] == found[1]["machine_cpu_share"]


def test_a_process_that_seems_to_start_in_the_future_has_no_share() -> None:
    sampler = HostSampler()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        process._create_time = process.create_time() + 1e6  # type: ignore[attr-defined]
        assert math.isnan(sampler._cores_so_far(process))


def test_a_process_that_is_gone_has_no_sample() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert HostSampler().sample(child.pid) is None
