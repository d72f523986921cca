"""A collector, or a relay before it, that tries to raise a site's level or to make a client act: none may succeed.

    python -m attack.hostile TRIES [SEED]

The client is the real sender with a real site, in a process of its own whose actions are watched: whatever starts a
program, runs code, opens another connection, or writes anywhere but into the spool and the audit ends up in a list.
Each try must stand in the site's audit.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from processes import environment

from stethos.collect.site import make_site, own_key
from stethos.web.keys import open_keys

POLICY = 'level = "L1"\n'
DEADLINE_S = 600.0
_WORDS = (
    "level", "policy", "set_level", "command", "cmd", "exec", "eval", "run", "code", "shell", "url", "address",
    "fingerprint", "tables", "until", "min_count", "noise", "epsilon", "upload", "path", "file", "preset", "overhead",
    "attach", "backtrace", "capture", "update", "plugin", "import", "redirect", "grant_hours", "site", "key",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    "L4", "L3", {"level": "L4"}, 'level = "L4"\nuntil = 2099-01-01T00:00:00Z', ["logs", "metrics"], {"logs": "keep"},
    "rm -rf ~", "__import__('os').system('touch /tmp/owned')", "http://127.0.0.1:1/x", "../../policy.toml", 1e308, -1,
    True, None, {"__reduce__": ["os.system", ["id"]]}, "\x1b[2Jlevel=L4", [[["L4"]]],
)  # fmt: skip
_HEADERS = (
    ("Location", "http://127.0.0.1:1/"), ("X-Stethos-Level", "L4"), ("Set-Cookie", "level=L4"), ("Refresh", "0; url=/"),
    ("Link", "</policy>; rel=preload"), ("X-Command", "attach"), ("Upgrade", "h2c"),
)  # fmt: skip


def an_answer(chance: random.Random) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of an answer that asks for what it must not get."""
    told: dict[str, Any] = {"stored": True} if chance.random() < 0.7 else {"stored": chance.choice(_VALUES[:6])}
    for word in chance.sample(_WORDS, chance.randint(1, 3)):
        told[word] = chance.choice(_VALUES)
    if chance.random() < 0.2:
        told["wait_s"] = chance.choice((-5, "never", True, 1e9))
    headers = chance.sample(_HEADERS, chance.choice((0, 0, 1, 2)))
    body = json.dumps(told).encode()
    if chance.random() < 0.15:
        body = chance.choice((
            pickle.dumps(print), POLICY.replace("1", "4").encode(), b"[" * 3000, b"\x28\xb5\x2f\xfd" + bytes(90),
            b"{" + b" " * (70 << 10), json.dumps(["level", "L4"]).encode(), b"<script>level='L4'</script>",
        ))  # fmt: skip
    return chance.choice((200, 200, 200, 201, 205, 299, 302, 307, 308, 418)), headers, body


class _Hostile(BaseHTTPRequestHandler):
    """Answers each batch with another try, and then takes it, so that the next one comes."""

    protocol_version = "HTTP/1.1"
    chance: random.Random
    tries = 0
    most = 0
    taken: set[bytes]
    tried: set[bytes]

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        kind = type(self)
        if data in kind.tried or kind.tries >= kind.most:
            kind.taken.add(data)
            self._answer(200, [], b'{"stored": true}')
            return
        kind.tried.add(data)
        kind.tries += 1
        status, headers, body = an_answer(kind.chance)
        self._answer(status, headers, body)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def attack(tries: int, seed: int = 0) -> dict[str, Any]:
    """So many tries: what the client did, what its audit says, and whether its site is as before."""
    with tempfile.TemporaryDirectory(prefix="stethos-hostile-") as scratch:
        keys = open_keys(Path(scratch) / "keys")
        handler = type("Handler", (_Hostile,), {"chance": random.Random(seed), "most": tries, "taken": set(),
                                                "tried": set()})  # fmt: skip
        server = HTTPServer(("127.0.0.1", 0), handler)
        server.socket = keys.server_context().wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = make_site(Path(scratch) / "site", "a", f"127.0.0.1:{server.server_port}", keys.fingerprint)
        own_key(site.path)
        site.policy_path.write_text(POLICY)
        before = {path.name: path.read_bytes() for path in site.path.iterdir() if path.is_file()}
        words = [sys.executable, "-m", "attack.hostile", "--client", str(site.path), str(tries)]
        own = environment(PYTHONPATH=os.pathsep.join(map(str, sys.path)))
        ended = subprocess.run(words, env=own, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        server.shutdown()
        server.server_close()
        assert ended.returncode == 0, ended.stderr[-3000:]
        told = json.loads(ended.stdout)
        after = {path.name: path.read_bytes() for path in site.path.iterdir() if path.is_file()}
        lines = after.pop("audit.jsonl", b"").splitlines()
        return {
            "tries": handler.tries, "written down": sum(b'"refused"' in line for line in lines),
            "acts": told["acts"], "level": told["level"], "site changed": before != after, "left": told["left"],
        }  # fmt: skip


# The client, in a process of its own ---------------------------------------------------------------------


def be_client(path: Path, tries: int) -> None:
    """Send so many batches from this site, and print what was done beside it."""
    import stethos.collect.forward
    from stethos.collect.batch import BatchHeader, digest_of, encode_batch
    from stethos.collect.forward import Forwarder
    from stethos.collect.sender import Sender
    from stethos.collect.site import open_site
    from stethos.collect.spool import Spool
    from stethos.record.place import RunPlace

    stethos.collect.sender.FIRST_WAIT_S = stethos.collect.sender.LONGEST_WAIT_S = 0.001
    site = open_site(path)
    forwarder = Forwarder(RunPlace(path / "runs" / "none"), site)
    sign, spool = site.signer(), Spool.load(site.spool / "r" / "p")
    for number in range(1, tries + 1):
        header = BatchHeader("a", "r", "p", spool.epoch, 1, number, digest=digest_of(b""), t_ns=time.time_ns())
        spool.append(1, number, 1, encode_batch(header, b"", sign))
    spool.save()
    forwarder.spools = lambda: [spool]  # type: ignore[method-assign]
    acts: list[str] = []
    host, _, port = site.address.rpartition(":")
    address = host, int(port)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "exec", "compile",
                     "os.kill", "ctypes.dlopen", "import"):  # fmt: skip
            acts.append(f"{event} {arguments[:1]}")
        elif event == "socket.connect" and tuple(arguments[1][:2]) != address:
            acts.append(f"{event} {arguments[1]}")
        elif _is_write(event, arguments) and not _is_own(arguments[0], path):
            acts.append(f"{event} {arguments[0]}")

    first = Sender(site, forwarder)  # what a first request loads
    deadline = time.monotonic() + DEADLINE_S
    while spool.acked[1] < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    sys.addaudithook(watch)
    while not spool.is_empty and time.monotonic() < deadline:
        time.sleep(0.01)
    found = sorted(set(acts))
    first.leave(0.1, 1.0)
    left = sum(1 for _ in spool.entries(1, spool.acked[1]))
    sys.stdout.write(json.dumps({"acts": found, "level": forwarder.policy().level, "left": left}))


def _is_write(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
    return event in ("os.remove", "os.rename", "os.chmod", "os.symlink", "shutil.rmtree")


def _is_own(path: Any, site: Path) -> bool:
    """Whether a file is of the spool, or the audit; names without a directory are opened within one."""
    if isinstance(path, int):  # open already
        return True
    name = os.fsdecode(path)
    if os.sep in name:
        return name.startswith(str(site / "spool"))
    return name in ("audit.jsonl", "state.json") or name.startswith(".state.json.") or name.endswith(".spool")


def main() -> int:
    if sys.argv[1] == "--client":
        be_client(Path(sys.argv[2]), int(sys.argv[3]))
        return 0
    found = attack(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for name, value in found.items():
        print(f"{name}: {value}")
    return 0 if is_harmless(found) else 1


def is_harmless(found: dict[str, Any]) -> bool:
    return (
        not found["acts"]
        and found["level"] == "L1"
        and not found["site changed"]
        and (found["written down"] >= found["tries"])
    )


if __name__ == "__main__":
    sys.exit(main())
