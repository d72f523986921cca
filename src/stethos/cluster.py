"""Work on a Ray cluster: independent calls side by side, each with a time limit, lost workers made good.

Without a cluster the calls run here, one after the other, and give the same results.
"""

from __future__ import annotations

import logging
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stethos.errors import StethosError, UsageError
from stethos.guard import tried
from stethos.settings import cluster_variables, store_variables, take_variables, worker_variables

Result = TypeVar("Result")
LOCAL = "local"
_RETRIES = 3
_POLL_S = 0.5
_CLIENT_PORT = 10001  # Ray's own, where an address has none
_REACH_S = 5.0
# A cluster's server forks a process for each client. gRPC (seen with 1.85) runs code of its own in the fork, in which
# one in twenty dies; Ray then holds the client for up to 40 s.
_TRIES = 5
_TRYING_S = 180.0
_PAUSE_S = 1.0
_SILENT, _SLOW = "connection timeout", "timed out"  # in Ray's words, in lower case
_NOT_SERVED = "Starting Ray client server failed", "Proxy failed to Connect to backend"
_NO_RAY = f"is it one of Ray's, and its port for clients, by default {_CLIENT_PORT}?"
_START_IT_SO = "what it starts for a client dies; start the cluster with GRPC_ENABLE_FORK_SUPPORT=0, or "


class ClusterError(StethosError):
    """A cluster cannot be reached, or a call on it failed or took too long."""

    exit_code = 9


def check_place(where: str) -> str:
    """The cluster's address, if it is one: `local`, `auto` or `ray://HOST:PORT`."""
    if where in (LOCAL, "ray", "auto"):
        return LOCAL if where == "ray" else where
    if not where.startswith("ray://") or "@" in where or _host_of(where) is None:
        raise UsageError("not the address of a Ray cluster", hint="write ray://HOST:PORT, auto or local")
    return where


def _host_of(where: str) -> tuple[str, int] | None:
    """Host and port of a cluster's address."""
    try:
        parts = urlsplit(where)
        return (parts.hostname, parts.port or _CLIENT_PORT) if parts.hostname else None
    except ValueError:
        return None


def _reach(where: str) -> Exception | None:
    """Why nobody listens there; Ray itself would try for half a minute."""
    place = _host_of(where)
    if place is None:  # one on this machine
        return None
    try:
        socket.create_connection(place, timeout=_REACH_S).close()
    except OSError as error:
        return error
    return None


def connect(where: str) -> Any:
    """Ray, connected; `local` starts one on this machine that ends with this process."""
    ray, error = tried(import_module, "ray")
    if error is not None or ray is None:
        raise UsageError("this needs ray, which is not installed", hint="pip install 'stethos[ray]'")
    if ray.is_initialized():
        return ray
    with cluster_variables():
        quiet = {"configure_logging": False, "log_to_driver": False, "logging_level": logging.ERROR}
        place = check_place(where)
        # A Ray of our own has our environment. With a `runtime_env` it would start its workers a second time.
        elsewhere = {"address": place, "runtime_env": {"env_vars": worker_variables()}}
        # Without an address Ray joins the cluster that RAY_ADDRESS names, or that was last started on this machine.
        own = {"address": "local", "include_dashboard": False}
        options: dict[str, Any] = own if place == LOCAL else elsewhere
        error = _reach(place)
        if error is not None:
            raise ClusterError(f"cannot reach the Ray cluster at {where}: {error}", hint="check the address; is it up?")
        error = _initialize(ray, place, options | quiet)
    if error is not None:
        lines = str(error).strip().splitlines()
        reason = lines[-1] if lines else type(error).__name__
        forked = any(words in str(error) for words in _NOT_SERVED)
        is_silent = _SILENT in str(error).lower()
        hint = _NO_RAY if is_silent else f"{_START_IT_SO if forked else ''}see the logs of its head node"
        raise ClusterError(f"cannot use the Ray cluster at {where}: {reason}", hint=hint)
    return ray


def _initialize(ray: Any, place: str, options: dict[str, Any]) -> Exception | None:
    """Join or start a cluster; why it failed. What may go better is tried again."""
    began = time.monotonic()
    for attempt in range(_TRIES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the caller says it
            _, error = tried(ray.init, **options)
        if error is None or not _may_pass(place, error):
            return error
        tried(ray.shutdown)  # half a connection would count as one
        if attempt == _TRIES - 1 or time.monotonic() - began > _TRYING_S:
            break
        time.sleep(_PAUSE_S)
    return error


def _may_pass(place: str, error: Exception) -> bool:
    """Whether it is a server that is there and cannot serve us, or a start that a busy machine was too slow for."""
    text = str(error).lower()
    if place == LOCAL:
        return _SLOW in text
    # Of one that says nothing, Ray has asked three times within half a minute.
    return place.startswith("ray://") and isinstance(error, ConnectionError) and _SILENT not in text


def _called(variables: dict[str, str], function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    """In a worker: a call that may reach the object store. A job's `runtime_env` would show the keys to everybody."""
    take_variables(variables)
    return function(*arguments)


def run_calls(
    function: Callable[..., Result],
    calls: Sequence[tuple[Any, ...]],
    where: str | None = None,
    *,
    timeout_s: float | None = None,
) -> Iterator[tuple[int, Result]]:
    """Make independent calls; yield each one's number and result as it ends.

    On a cluster, at most as many run at once as it has CPUs. A call whose worker is lost is made again, up to three
    times. StethosErrors of a call are raised here; so is ClusterError for one that fails otherwise, or takes longer
    than `timeout_s`, which is then stopped. What has not begun by then never does.
    """
    if where is None:
        for number, arguments in enumerate(calls):
            yield number, function(*arguments)
        return
    ray = connect(where)
    remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_called).options(name=function.__name__)
    variables = store_variables()
    width = max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting = list(enumerate(calls))[::-1]
    running: dict[Any, tuple[int, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < width:
                number, arguments = waiting.pop()
                running[remote.remote(variables, function, arguments)] = number, time.monotonic()
            done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_S)
            for one in done:
                number, _ = running.pop(one)
                yield number, _result_of(ray, one)
            late = [n for n, began in running.values() if timeout_s and time.monotonic() - began > timeout_s]
            if late:
                raise ClusterError(f"a call took longer than {timeout_s:g} s", hint="allow more with --task-timeout S")
    finally:
        for one in running:
            tried(ray.cancel, one, force=True)


def _result_of(ray: Any, one: Any) -> Any:
    result, error = tried(ray.get, one)
    if error is None:
        return result
    cause = getattr(error, "cause", None)
    if isinstance(cause, StethosError):
        raise cause
    lines = str(error).strip().splitlines()
    raise ClusterError(f"a call on the cluster failed: {lines[-1] if lines else type(error).__name__}")
