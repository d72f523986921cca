"""The prompt of `stethos debug`."""

from __future__ import annotations

import bdb
import cmd
import dis
import math
import pdb
import sys
import time
from types import CodeType
from typing import Any

from stethos.cli.screen.text import clean
from stethos.errors import StethosError, UsageError
from stethos.guard import tried
from stethos.nearest import did_you_mean
from stethos.replay.counterfactual import ChangedRound
from stethos.replay.cursor import Cursor

_POLL_S = 0.3
_MOST_ROWS = 60
_ALIASES = {"n": "next", "b": "back", "c": "continue", "l": "list", "i": "inspect", "e": "eval", "p": "eval",
            "q": "quit", "exit": "quit", "h": "help", "agg": "aggregate", "ls": "list", "step": "next",
            "resume": "continue"}  # fmt: skip


class Debugger(cmd.Cmd):
    """Reads commands and shows what they find; mistakes are said and the next command is read."""

    doc_header = "Commands (help COMMAND says more):"

    def __init__(self, cursor: Cursor, *, is_terminal: bool) -> None:
        super().__init__()
        self._cursor = cursor
        self._is_terminal = is_terminal
        self.use_rawinput = is_terminal
        self.failures = 0

    # The loop -----------------------------------------------------------------------------------------

    @property
    def prompt(self) -> str:  # type: ignore[override]
        return f"({clean(self._cursor.words)}) "

    def preloop(self) -> None:
        rounds = self._cursor.bundle.rounds
        state = "" if self._cursor.bundle.is_finished or not self._cursor.run.is_live else "; the run is still going"
        self._say(f"{clean(self._cursor.run.name)}: rounds {rounds[0]} to {rounds[-1]} captured{state}. Try `help`.")

    def precmd(self, line: str) -> str:
        if not self._is_terminal and line != "EOF":
            self._say(line.rstrip("\n"))
        word, _, rest = line.strip().partition(" ")
        return f"{_ALIASES[word]} {rest}" if word in _ALIASES else line

    def onecmd(self, line: str) -> bool:
        try:
            return bool(super().onecmd(line))
        except StethosError as error:
            self._fail(str(error))
        except KeyboardInterrupt:
            self._fail("stopped")
        return False

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        word = line.split()[0]
        known = [name[3:] for name in self.get_names() if name.startswith("do_")]
        hint = did_you_mean(word, known, otherwise="`help` lists the commands; `eval` takes expressions")
        raise UsageError(f"no command {word!r}", hint=hint)

    def _say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _fail(self, text: str) -> None:
        self.failures += 1
        self._say(clean(text, keep_lines=True))

    # Moving -------------------------------------------------------------------------------------------

    def do_next(self, text: str) -> None:
        """next [N]: the next round; inside a round the next client, inside a client the next step."""
        self._move(_count(text))

    def do_back(self, text: str) -> None:
        """back [N]: the round, client or step before."""
        self._move(-_count(text))

    def _move(self, count: int) -> None:
        if not self._cursor.move(count):
            is_growing = count > 0 and self._cursor.client is None and not self._cursor.bundle.is_finished
            raise UsageError(
                "this is the last one that there is" if count > 0 else "this is the first one that there is",
                hint="the run is still going: try again when its next round has ended" if is_growing else "",
            )
        self._where()

    def do_goto(self, text: str) -> None:
        """goto ROUND: go to a round."""
        self._cursor.goto(_count(text, "goto 12"))
        self._where()

    def do_in(self, text: str) -> None:
        """in [CLIENT | STEP]: from a round into a client, from a client into a step of its training."""
        self._cursor.enter(text.strip() or None)
        self._where()

    def do_out(self, text: str) -> None:
        """out: from a step to its client, from a client to its round."""
        self._cursor.leave()
        self._where()

    def do_break(self, text: str) -> None:
        """break ROUND | CLIENT | ROUND CLIENT | if CONDITION: where `continue` stops; alone, list the breaks.

        A condition is SQL over the columns of rounds, client_rounds, updates or steps: break if accuracy < 0.8"""
        if text.strip():
            made = self._cursor.add_break(text.strip())
            self._say(f"break {len(self._cursor.breaks)}: {clean(str(made))}")
            return
        for number, one in enumerate(self._cursor.breaks, start=1):
            self._say(f"break {number}: {clean(str(one))}")

    def do_clear(self, text: str) -> None:
        """clear [NUMBER]: remove a break, or all."""
        if not text.strip():
            self._cursor.breaks.clear()
            return
        number = _count(text)
        if not 1 <= number <= len(self._cursor.breaks):
            raise UsageError(f"no break {number}", hint="`break` lists them")
        del self._cursor.breaks[number - 1]

    def do_continue(self, text: str) -> None:
        """continue: to the next break, or the last round. After remove or edit: carry on from here, training again.

        Beside a run that goes on, with breaks set, it waits for rounds to come; Ctrl-C ends that."""
        if self._cursor.change.without or self._cursor.change.edits:
            self._carry_on()
            return
        self._cursor.client = self._cursor.step = None
        while True:
            while self._cursor.move(1):
                found = self._cursor.stops_here()
                if found is not None:
                    self._say(f"break: {clean(str(found))}")
                    self._where()
                    return
            if not self._cursor.breaks or self._cursor.bundle.is_finished or not self._cursor.run.is_live:
                break
            time.sleep(_POLL_S)
        self._where()

    def _carry_on(self) -> None:
        self._say("round  " + f"{'without changes':>24}  {'with them':>24}")
        last: ChangedRound | None = None
        for one in self._cursor.carried_on():
            how = "trained again" if one.is_retrained else "recorded updates"
            self._say(f"{one.round:5}  {_numbers(one.recorded):>24}  {_numbers(one.numbers):>24}  {how}")
            last = one
        if last is not None and "accuracy" in last.numbers and "accuracy" in last.recorded:
            self._say(f"accuracy {last.recorded['accuracy']:.4f} -> {last.numbers['accuracy']:.4f}: {self._changes()}")

    # Looking ------------------------------------------------------------------------------------------

    def do_where(self, text: str) -> None:
        """where: the place, and the numbers of the global model after this round."""
        self._where()

    def _where(self) -> None:
        cursor = self._cursor
        if cursor.step is not None and cursor.client is not None:
            losses = cursor.losses()
            known = losses[cursor.step - 1] if cursor.step <= len(losses) else math.nan
            self._say(f"step {cursor.step} of {len(losses) or '?'}  loss {known:.6g}")
        elif cursor.client is not None:
            turn = cursor.bundle.turn(cursor.round, cursor.client)
            facts = "  ".join(
                f"{name} {_short(turn[name])}" for name in ("samples", "loss", "status") if turn.get(name)
            )
            self._say(f"client {clean(cursor.client)}  {facts}  {len(cursor.losses()) or '?'} steps")
        else:
            self._say(f"round {cursor.round}  {_numbers(cursor.evaluation())}  {len(cursor.clients())} clients")

    def do_list(self, text: str) -> None:
        """list: the clients of this round; inside a client the steps of its training."""
        if self._cursor.client is not None:
            for number, loss in enumerate(self._cursor.losses()[:_MOST_ROWS], start=1):
                self._say(f"{'->' if number == self._cursor.step else '  '} step {number:4}  loss {loss:.6g}")
            return
        rows = list(self._cursor.client_rows())
        columns = ["client", "status", "samples", "loss", "norm", "cosine", "marks"]
        self._table(columns, [[row.get(name) for name in columns] for row in rows])

    def do_rounds(self, text: str) -> None:
        """rounds: the captured rounds, with the numbers of their global models."""
        bundle = self._cursor.bundle
        for number in bundle.rounds:
            mark = "->" if number == self._cursor.round else "  "
            evaluation = _numbers(bundle.manifest(number).get("evaluation") or {})
            self._say(f"{mark} {number:5}  {evaluation}  {len(bundle.clients(number))} clients")
        for first, last, reason in bundle.dropped["rounds"]:
            self._say(f"   rounds {first} to {last} were dropped {clean(reason)}")

    def do_inspect(self, text: str) -> None:
        """inspect [LAYER]: the layers of the model here: of the round, of the client's update, or after the step."""
        names = self._cursor.names()
        state = names["update"] if self._cursor.client is not None and self._cursor.step is None else names["model"]
        if state is None:
            self._cursor.bundle.update(self._cursor.round, str(self._cursor.client))  # says why there is none
        base, wanted = names["before"], text.strip()
        if wanted and wanted not in state:
            raise UsageError(f"no layer {wanted!r}", hint=f"layers: {', '.join(state)}")
        if wanted:
            self._say(clean(str(state[wanted]), keep_lines=True))
            return
        to = names["after"] if self._cursor.client is None else state
        rows = []
        for name, value in state.items():
            if value.is_floating_point():
                moved = float((to[name] - base[name]).norm()) if name in to and name in base else math.nan
                odd = int((~value.isfinite()).sum())
                rows.append([name, "x".join(map(str, value.shape)) or "1", float(value.norm()), moved, odd or ""])
        self._table(["layer", "shape", "norm", "moved", "non-finite"], rows)

    def do_eval(self, text: str) -> None:
        """eval EXPRESSION: Python over model, after, update, updates, np and torch; inside a step also gradients.

        model is the global model before the round, or the client's after the step; update is what the client sent."""
        if not text.strip():
            raise UsageError("an expression is missing", hint="eval model['0.weight'].norm()")
        names = self._cursor.names()
        value, error = tried(eval, text.strip(), names)
        if error is not None:
            self._fail(f"{type(error).__name__}: {error}")
            return
        self._say(clean(repr(value), keep_lines=True))

    def _table(self, columns: list[str], rows: list[list[Any]]) -> None:
        cells = [columns, *([_short(value) for value in row] for row in rows[:_MOST_ROWS])]
        widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
        for row in cells:
            self._say("  ".join(clean(cell).rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if len(rows) > _MOST_ROWS:
            self._say(f"and {len(rows) - _MOST_ROWS} more")

    # What if ------------------------------------------------------------------------------------------

    def do_aggregate(self, text: str) -> None:
        """aggregate [CLIENT ...]: the recorded updates of these clients alone, or of all that are not removed."""
        _, numbers = self._cursor.aggregate(text.split())
        self._say(f"recorded  {_numbers(self._cursor.evaluation())}")
        self._say(f"these     {_numbers(numbers)}")

    def do_remove(self, text: str) -> None:
        """remove CLIENT ...: as if these clients took no part, from this round on; `continue` carries on from here."""
        self._need(text, "remove c7")
        for name in text.split():
            self._cursor.remove(name)
        self._cursor.client = self._cursor.step = None
        self._say(f"{self._changes()}; `continue` carries on from round {self._cursor.round}")

    def do_edit(self, text: str) -> None:
        """edit CLIENT scale FACTOR | clip LENGTH | negate | zero: change what a client sends, from this round on."""
        self._need(text, "edit c7 scale 0.5")
        client, *words = text.split()
        if not words:
            raise UsageError(f"what of {client}?", hint="edit c7 scale 0.5; also clip LENGTH, negate, zero")
        self._cursor.edit(client, words[0], words[1] if len(words) > 1 else None)
        self._say(f"{self._changes()}; `continue` carries on from round {self._cursor.round}")

    def do_restore(self, text: str) -> None:
        """restore CLIENT ...: take back remove and edit."""
        self._need(text, "restore c7")
        for name in text.split():
            self._cursor.restore(name)
        self._say(self._changes())

    def do_changes(self, text: str) -> None:
        """changes: what `continue` will do differently."""
        self._say(self._changes())

    def _changes(self) -> str:
        parts = [f"without {clean(client)}" for client in sorted(self._cursor.change.without)]
        parts += [f"{clean(client)}: {words}" for client, words in self._cursor.edits.items()]
        return ", ".join(parts) or "no changes"

    def _need(self, text: str, example: str) -> None:
        if not text.strip():
            raise UsageError("a client is missing", hint=example)

    # Into the training --------------------------------------------------------------------------------

    def do_pdb(self, text: str) -> None:
        """pdb: Python's debugger inside the client's local training, which is done again. q comes back."""
        cursor = self._cursor
        if cursor.client is None:
            raise UsageError("pdb goes into a client's training", hint="`in CLIENT` first")
        entrance = getattr(cursor.trainer, "entrance", None)
        if entrance is None:
            raise UsageError("no training to step into", hint="--trainer module:function")
        code: CodeType = entrance.__code__
        first = min(line for _, line in dis.findlinestarts(code) if line is not None and line > code.co_firstlineno)
        inner = pdb.Pdb() if self._is_terminal else pdb.Pdb(stdin=sys.stdin, stdout=sys.stdout)
        inner.set_break(code.co_filename, first, temporary=True)
        inner.rcLines.append("continue")
        limit = getattr(cursor.trainer, "timeout_s", None)
        if limit is not None:
            cursor.trainer.timeout_s = None  # type: ignore[attr-defined]
        try:
            made = inner.runcall(cursor.train)
            self._say("the training is over" if made is not None else "left the training")
        except bdb.BdbQuit:
            self._say("left the training")
        finally:
            sys.settrace(None)
            if limit is not None:
                cursor.trainer.timeout_s = limit  # type: ignore[attr-defined]

    # The end, and completion --------------------------------------------------------------------------

    def do_quit(self, text: str) -> bool:
        """quit: leave; the run is as it was."""
        return True

    def do_EOF(self, text: str) -> bool:  # noqa: N802
        """The end of the input."""
        self._say("")
        return True

    def do_help(self, arg: str) -> None:
        """help [COMMAND]: this list, or more about a command."""
        names = sorted(name[3:] for name in self.get_names() if name.startswith("do_") and name != "do_EOF")
        word = _ALIASES.get(arg.strip(), arg.strip())
        if word and word not in names:
            raise UsageError(f"no command {word!r}", hint=f"commands: {', '.join(names)}")
        for name in [word] if word else names:
            text = (getattr(self, f"do_{name}").__doc__ or "").strip()
            self._say("\n".join(line.strip() for line in text.splitlines()) if word else "  " + text.partition("\n")[0])

    def _complete_clients(self, text: str) -> list[str]:
        return [client for client in self._cursor.all_clients() if client.startswith(text)]

    def complete_in(self, text: str, *rest: Any) -> list[str]:
        return self._complete_clients(text)

    complete_remove = complete_restore = complete_edit = complete_aggregate = complete_break = complete_in

    def complete_inspect(self, text: str, *rest: Any) -> list[str]:
        return [name for name in self._cursor.names()["model"] if name.startswith(text)]


def _count(text: str, example: str = "next 3") -> int:
    word = text.strip() or "1"
    if not word.isdecimal():
        raise UsageError(f"not a number: {word!r}", hint=example)
    return int(word)


def _numbers(numbers: Any) -> str:
    first = [name for name in ("accuracy", "loss") if name in numbers]
    rest = [name for name in numbers if name not in first][:2]
    return "  ".join(f"{clean(str(name))} {numbers[name]:.4f}" for name in [*first, *rest]) or "not evaluated"


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
