"""Which federations and rounds a run has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stethos.errors import UsageError
from stethos.view.query import Query

if TYPE_CHECKING:
    from stethos.store.run import Run

KNOWN = Query("""\
SELECT DISTINCT federation, round FROM rounds
UNION SELECT DISTINCT federation, round FROM client_reports
ORDER BY federation, round""")


def is_federated(run: Run, federation: str | None = None, round: int | None = None) -> bool:
    """Whether the run has rows of a federation; UsageError if it has, but not of the one or the round asked for."""
    known = KNOWN.ask(run).values
    federations = sorted({str(name) for name, _ in known})
    if known and federation is not None and federation not in federations:
        raise UsageError(f"no federation {federation!r} in run {run.name}", hint=f"it has {', '.join(federations)}")
    rounds = sorted(one for name, one in known if one is not None and federation in (None, name))
    if known and round is not None and round not in rounds:
        span = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "none that has ended"
        raise UsageError(f"no round {round} in run {run.name}", hint=f"it has {span}: see `stethos rounds`")
    return bool(known)
