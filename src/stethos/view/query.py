"""A question to the tables of a run: its SQL, and what can be chosen in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template
from typing import TYPE_CHECKING, Any, Literal

from stethos.errors import QueryError
from stethos.store.literal import literal

if TYPE_CHECKING:
    from stethos.store.rows import Record, Rows
    from stethos.store.run import Run

Scale = Literal["linear", "log", "diverging", "category"]
_WHOLE = re.compile(r"-?\d{1,18}")
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Option:
    """One value of a choice: the SQL it stands for in the query, and how what it shows is scaled."""

    sql: str
    title: str
    scale: Scale = "linear"
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something the reader can choose.

    With `options` it is one of these, the first by default; otherwise a text or
    a whole number that becomes a literal, and NULL if not given. `values` is a
    query whose first column lists what can be given.
    """

    name: str
    title: str
    kind: Literal["text", "number", "choice"] = "text"
    options: Mapping[str, Option] = field(default_factory=dict)
    values: str = ""

    def literal(self, given: str | int | None) -> str:
        """What takes the parameter's place in the query; QueryError if it cannot be given."""
        if self.kind == "choice":
            chosen = str(given) if given not in (None, "") else next(iter(self.options))
            if chosen not in self.options:
                raise QueryError(f"{self.name} cannot be {chosen!r}", hint=f"choose one of {', '.join(self.options)}")
            return self.options[chosen].sql
        if given in (None, ""):
            return "NULL"
        if self.kind == "number":
            if not _WHOLE.fullmatch(str(given)):
                raise QueryError(f"{self.name} is not a whole number: {given!r}", hint="leave it out for the last one")
            return str(int(given or 0))
        return literal(str(given))


@dataclass(frozen=True, slots=True)
class Query:
    """SQL in which `$name` stands for a parameter; what is not given is NULL, or the first option of a choice.

    `$only_name` is the condition that the column of this name has the value given; `true` without one.
    """

    sql: str
    parameters: tuple[Parameter, ...] = ()

    def __call__(self, /, **given: str | int | None) -> str:
        """The SQL for these parameters, as it can be typed by hand."""
        known = {parameter.name for parameter in self.parameters}
        unknown = sorted(set(given) - known)
        if unknown:
            raise QueryError(f"no parameter {unknown[0]!r}", hint=f"there is: {', '.join(sorted(known)) or 'none'}")
        literals = {parameter.name: parameter.literal(given.get(parameter.name)) for parameter in self.parameters}
        conditions = {
            f"only_{name}": "true" if text == "NULL" else f"{name} = {text}" for name, text in literals.items()
        }
        return Template(self.sql).substitute(literals | conditions)

    def ask(self, run: Run, /, *, limit_rows: int | None = None, timeout_s: float = _TIMEOUT_S, **given: Any) -> Rows:
        """The answer for a run as it is now; QueryError if a parameter cannot be given."""
        return run.rows(self(**given), limit_rows=limit_rows, timeout_s=timeout_s)

    def records(self, run: Run, /, **given: Any) -> list[Record]:
        """The answer's rows by the names of their columns."""
        return self.ask(run, **given).records()
