"""`stethos.archive`: an archive of runs, listed and asked as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.archive.address import Address, parse_address
from stethos.archive.cache import open_archived
from stethos.archive.catalogue import Catalogue
from stethos.archive.place import ArchivedRun
from stethos.cluster import check_place
from stethos.errors import RunNotFoundError, UsageError
from stethos.store.statement import tables_named

if TYPE_CHECKING:
    import pyarrow as pa

    from stethos.archive.fleet_diagnosis import FleetDiagnosis
    from stethos.store.run import Run


_ENGINES = ("duckdb", "daft", "ray", "auto")


def archive(address: str | Path) -> Archive:
    """Open an archive: `s3://BUCKET/PATH` or a directory that `stethos archive` has written to."""
    return Archive(parse_address(address))


class Archive:
    """The runs of one archive. Every call looks again."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def __repr__(self) -> str:
        return f"<Archive {self.address}>"

    def runs(self) -> list[dict[str, Any]]:
        """One row per run, the latest first: state, verdict, last values, hyperparameters; one read for all."""
        catalogue = Catalogue(self.address)
        if not catalogue.exists:
            hint = f"make one with `stethos archive --to {self.address}`"
            if ArchivedRun(self.address).snapshot(is_needed=False) is not None:
                hint = f"it is a run: `stethos -t {self.address} diagnose`; its archive is {self.address.parent}"
            raise RunNotFoundError(f"no archive at {self.address}", hint=hint)
        return catalogue.rows()

    def sql(
        self, query: str, *, engine: str = "duckdb", limit_rows: int | None = None, timeout_s: float | None = None
    ) -> pa.Table:
        """One reading statement over all runs, whose tables have a column `run` in front; the result as Arrow.

        `engine` is `duckdb`, `daft` (on this machine; it knows no `timeout_s`), or a Ray cluster on which Daft works:
        `ray://HOST:PORT`, or `ray` for one on this machine. QueryError, before anything is read, if the statement is
        wrong, would write, or is one that the engine cannot run.
        """
        rows, named = self.runs(), tables_named(query)
        if engine != "duckdb":
            from stethos.archive.daft_query import ask_daft

            if engine not in _ENGINES and not engine.startswith("ray://"):  # what it says may be a secret
                raise UsageError("no such engine", hint="use duckdb, daft, ray, or ray://HOST:PORT for a Ray cluster")
            if timeout_s is not None:
                raise UsageError("Daft has no time limit for a query", hint="leave --timeout away, or --engine")
            where = None if engine == "daft" else check_place(engine)
            found = ask_daft(self.address, rows, query, named, where)
            return found if limit_rows is None else found.slice(0, limit_rows)
        from stethos.archive.fleet import Fleet
        from stethos.store.complaint import explain_error
        from stethos.store.engine import FileTroubleError

        with Fleet(self.address, rows) as fleet:
            try:
                fleet.define(named, query)
                statement = fleet.engine.check(query)
                return fleet.engine.arrow(statement, set(named), limit_rows=limit_rows, timeout_s=timeout_s)
            except FileTroubleError as error:
                raise explain_error(error, set(named)) from None

    def diagnose(
        self, *, on: str | None = None, timeout_s: float | None = None,
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> FleetDiagnosis:  # fmt: skip
        """Every detector over every run, and what the runs have in common.

        `on` is a Ray cluster (`ray://HOST:PORT`, or `local` for one on this machine), each run a task with a limit of
        `timeout_s`; without it they follow each other here.
        """
        from stethos.archive.fleet_diagnosis import diagnose_fleet

        names = [str(row["run"]) for row in self.runs()]
        where = None if on is None else check_place(on)
        return diagnose_fleet(self.address, names, where, timeout_s=timeout_s, tell=tell)

    def open_run(self, name: str) -> Run:
        """One run, as `stethos.open_run(ADDRESS/NAME)`."""
        from stethos.store.run import Run

        return Run(open_archived(self.address / name))
