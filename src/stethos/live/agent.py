"""The agent: a thread in an observed process that answers on a Unix socket.

The socket is the user's alone (0600 in a directory of 0700) and every caller's
uid is checked; there is no TCP port. The thread sleeps in `accept` until
a request comes, and never writes to the program's output. After a fork the
child forgets it, and gets its own when it records something.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from stethos.errors import LiveError, StethosError, UsageError
from stethos.guard import Guard
from stethos.live.ask import address_of
from stethos.live.audit import Audit, note_refusal
from stethos.live.boundary import Boundary
from stethos.live.checkpoint import save_checkpoint
from stethos.live.evaluate import evaluate_code
from stethos.live.inside import thread_stacks
from stethos.live.profiler_trace import trace_steps
from stethos.live.registry import socket_path
from stethos.live.request import Request
from stethos.live.steer import Steering, change_clip, change_rate, collect_garbage
from stethos.live.sync import parameter_hash
from stethos.live.wire import LARGEST_REPLY, LARGEST_REQUEST, error_reply, receive, send
from stethos.observe import boot
from stethos.observe.session import Session
from stethos.record.border import make_directory

THREAD_NAME = "stethos-agent"
_MOST_CLIENTS = 128
_BACKLOG = 128
_IDLE_S = 3600.0
_END_S = 0.5  # for which the end of the listening thread is waited for at most
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Operation:
    """Something the agent can be asked: to `read` changes nothing, to `act` is written down before it happens."""

    function: Callable[[Request], dict[str, Any]]
    right: Literal["read", "act"]


def _about(request: Request) -> dict[str, Any]:
    """Who is asked, and how far it has got."""
    session = request.session
    torch_hooks = request.recording.torch_hooks
    return {
        "pid": os.getpid(),
        "run": str(session.settings.run_dir),
        "steps": session.steps,
        "is_watching": torch_hooks is not None and torch_hooks.steps.is_active,
        "ops": {name: operation.right for name, operation in OPS.items()},
    }


def _detach(request: Request) -> dict[str, Any]:
    """Stop observing: torch gets its functions back, the recording ends, and this agent with it."""
    from stethos.live.attached import end_recording

    left = end_recording(request.recording, request.steering)
    return {"left": left, "steps": request.session.steps}


# What can be asked, by name.
OPS: dict[str, Operation] = {
    "about": Operation(_about, "read"),
    "stacks": Operation(thread_stacks, "read"),
    "sync": Operation(parameter_hash, "read"),
    "eval": Operation(evaluate_code, "act"),
    "lr": Operation(change_rate, "act"),
    "clip": Operation(change_clip, "act"),
    "gc": Operation(collect_garbage, "act"),
    "checkpoint": Operation(save_checkpoint, "act"),
    "profile": Operation(trace_steps, "act"),
    "detach": Operation(_detach, "act"),
}


@dataclass(eq=False)
class Agent:
    """Listens for one session until it is stopped."""

    session: Session
    boundary: Boundary = field(default_factory=Boundary)
    steering: Steering = field(default_factory=Steering)
    _listener: socket.socket | None = None
    _connections: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _refusals: Counter[int] = field(default_factory=Counter)  # by uid
    _thread: threading.Thread | None = None  # that listens

    def start(self) -> None:
        """Listen; a socket that a dead process of the same pid left behind is replaced."""
        if self._listener is not None:
            return
        path = socket_path(os.getpid())
        make_directory(path.parent)
        about = path.parent.stat()
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise LiveError(f"{path.parent} is not this user's alone")
        unheard = path.with_suffix(".new")  # who finds the socket by its name finds it listening
        unheard.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), 0o600)  # the mode that `bind` gives the file
            with address_of(unheard) as address:
                listener.bind(address)
            unheard.chmod(0o600)
            listener.listen(_BACKLOG)
            unheard.replace(path)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        self._thread = threading.Thread(target=self._listen, args=(listener,), name=THREAD_NAME, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Hang up and take the socket away; safe to call twice.

        Waits until nobody listens: a thread that wakes while the interpreter ends is torn out of whatever it is in,
        and where that is C++, the process aborts.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        socket_path(os.getpid()).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_S)
        listener.close()

    def after_fork(self) -> None:
        """In a forked child: its parent's sockets are not its own."""
        listener, self._listener = self._listener, None
        self._thread = None
        for one in (listener, *self._connections):
            if one is not None:
                one.close()
        self._connections = set()
        self._lock = threading.Lock()
        self.boundary = Boundary()
        recording = boot.current()
        if recording is not None and recording.torch_hooks is not None:
            recording.torch_hooks.steps.next_step_call = None  # what was left for its parent

    # The agent's threads ------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._listener is not listener:
                    return
                time.sleep(0.05)  # no more files, for example
                continue
            self.session.guard.run("agent", self._admit, connection)

    def _admit(self, connection: socket.socket) -> None:
        connection.settimeout(_IDLE_S)
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != os.geteuid():
            self._refusals[uid] += 1
            note_refusal(self.session, pid, uid, self._refusals[uid])
            self._refuse(connection, LiveError(f"uid {uid} is not the owner of process {os.getpid()}"))
        elif len(self._connections) >= _MOST_CLIENTS:
            self._refuse(connection, LiveError(f"{_MOST_CLIENTS} clients are connected already", hint="try again"))
        else:
            with self._lock:
                self._connections.add(connection)
            serve = threading.Thread(target=self._serve, args=(connection, pid, uid), name=THREAD_NAME, daemon=True)
            serve.start()

    def _refuse(self, connection: socket.socket, error: LiveError) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(1.0)
            send(connection, error_reply(error), LARGEST_REPLY)

    def _serve(self, connection: socket.socket, pid: int, uid: int) -> None:
        kept: dict[str, Any] = {}
        try:
            with contextlib.suppress(OSError):
                while self._listener is not None:
                    try:
                        content = receive(connection, LARGEST_REQUEST)
                    except LiveError as error:
                        send(connection, error_reply(error), LARGEST_REPLY)
                        return
                    if content is None:
                        return
                    reply = self.answer(content, connection, pid, uid, kept)
                    try:
                        send(connection, reply, LARGEST_REPLY)
                    except LiveError as error:  # too large
                        send(connection, error_reply(error), LARGEST_REPLY)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def answer(
        self, content: dict[str, Any], connection: socket.socket | None, pid: int, uid: int, kept: dict[str, Any]
    ) -> dict[str, Any]:
        """The reply to a request; our own failures are errors in it."""
        recording = boot.current()
        failures: list[str] = []
        guard = Guard(lambda place, reason: failures.append(reason))
        if recording is None or recording.session is not self.session:
            return error_reply(LiveError("this process is no longer recording"))
        request = Request(content, recording, self.boundary, self.steering, connection, pid, uid, kept)
        reply = guard.run("agent", self._perform, request)
        return reply or error_reply(LiveError(f"the agent failed: {'; '.join(failures) or 'for no reason'}"))

    def _perform(self, request: Request) -> dict[str, Any]:
        name = request.op
        try:
            operation = OPS.get(name)
            if operation is None:
                raise UsageError(f"no operation {name!r}", hint=f"operations: {', '.join(OPS)}")
            if operation.right == "read":
                return {"ok": True, **operation.function(request)}
            with Audit(request):
                return {"ok": True, **operation.function(request)}
        except StethosError as error:
            return error_reply(error)


def start_agent(session: Session) -> None:
    """Begin to listen, if the settings allow it; called whenever a session has opened its ring."""
    if not session.settings.agent:
        return
    agent = getattr(session, "agent", None)
    if not isinstance(agent, Agent):
        agent = session.agent = Agent(session)
        session.on_fork.append(agent.after_fork)
    agent.start()
    session.on_close.append(agent.stop)
