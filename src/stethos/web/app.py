"""The application: one table of routes, everything in it read-only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stethos import __version__
from stethos.errors import QueryError, RunNotFoundError, StethosError, UsageError
from stethos.schema import TABLES
from stethos.store.run import Run
from stethos.web.asker import SQL_TIMEOUT_S, Asker
from stethos.web.bundle import Bundle
from stethos.web.compare import Comparer
from stethos.web.door import Door
from stethos.web.encode import encode
from stethos.web.events import Watchers
from stethos.web.examine import Examiner, findings_of
from stethos.web.panel import Panel, ask, evaluate
from stethos.web.panels import PAGES, PANELS
from stethos.web.shelf import Shelf
from stethos.web.stacks import stacks_of

_BODY_BYTES = 64 << 10
_VALUES_ROWS = 5_000
_STATUS = {RunNotFoundError: 404, QueryError: 400, UsageError: 400}


class Dashboard:
    """What the routes answer, over one directory of runs."""

    def __init__(self, directory: Path, bundle: Bundle) -> None:
        self.shelf = Shelf(directory)
        self.bundle = bundle
        self.asker = Asker()
        self.examiner = Examiner(self.shelf)
        self.comparer = Comparer(self.shelf)
        self.watchers = Watchers(self.shelf, self.examiner)

    async def asset(self, request: Request) -> Response:
        """The page and its files; they hold no data."""
        asset = self.bundle.assets.get(request.url.path)
        if asset is None:
            return _json({"error": "no such page", "hint": "the dashboard is at /"}, 404)
        is_named_by_content = request.url.path.startswith("/assets/")
        caching = "public, max-age=31536000, immutable" if is_named_by_content else "no-store"
        return Response(asset.content, media_type=asset.media_type, headers={"cache-control": caching})

    async def panels(self, request: Request) -> Response:
        """Every panel, every page, every table: what the page is made from."""
        tables = [
            {
                "name": table.qualified_name,
                "per": table.per,
                "doc": table.doc,
                "columns": [[column.name, column.doc] for column in table.all_columns],
            }
            for table in TABLES.values()
        ]
        panels = [panel.as_dict() for panel in PANELS.values()]
        content = {"version": __version__, "pages": PAGES, "panels": panels, "tables": tables}
        return _json({**content, "directory": str(self.shelf.directory)})

    async def runs(self, request: Request) -> Response:
        """A row for every run in the directory."""
        return _json({"runs": await to_thread.run_sync(self.shelf.summaries)})

    async def compare(self, request: Request) -> Response:
        """Runs side by side; those that the query string names."""
        return _json(await to_thread.run_sync(self.comparer.compare, request.query_params.getlist("run")))

    async def panel(self, request: Request) -> Response:
        """One panel's numbers; its parameters are those of the query string."""
        name, panel = request.path_params["run"], _panel(request)
        given = dict(request.query_params)
        panel.query(**given)  # complain before anything is opened

        def make(run: Run) -> bytes:
            return encode({"panel": panel.name, **evaluate(run, panel, **given).as_dict()})

        key = (panel.name, *sorted(f"{parameter}={value}" for parameter, value in given.items()))
        body = await to_thread.run_sync(self.shelf.answer, name, key, make)
        return Response(body, media_type="application/json")

    async def values(self, request: Request) -> Response:
        """What a parameter of a panel can be."""
        name, panel = request.path_params["run"], _panel(request)
        parameter = next((one for one in panel.parameters if one.name == request.path_params["parameter"]), None)
        if parameter is None or not parameter.values:
            return _json({"error": "no such parameter", "hint": "see /api/panels"}, 404)
        sql = parameter.values

        def make(run: Run) -> bytes:
            found = ask(run, sql, limit_rows=_VALUES_ROWS, timeout_s=SQL_TIMEOUT_S)
            return encode({"values": found.values[0], "is_cut": found.is_cut})

        body = await to_thread.run_sync(self.shelf.answer, name, ("values", sql), make)
        return Response(body, media_type="application/json")

    async def sql(self, request: Request) -> Response:
        """Any reading query, within limits of time, rows and memory."""
        name, text = request.path_params["run"], await _statement(request)

        place = self.shelf.place(name)
        return Response(await to_thread.run_sync(self.asker.ask, place.path, text), media_type="application/json")

    async def findings(self, request: Request) -> Response:
        """What is wrong with a run; a diagnosis that is not up to date is begun anew in the background."""
        name = request.path_params["run"]
        version = await to_thread.run_sync(lambda: self.shelf.version(name, with_findings=False))
        known = self.examiner.poke(name, version)
        return _json(await to_thread.run_sync(findings_of, self.shelf, name, known))

    async def stacks(self, request: Request) -> Response:
        """Where the run's processes are now; they are read from outside."""
        place = self.shelf.place(request.path_params["run"])
        return _json(await to_thread.run_sync(stacks_of, place))

    async def events(self, request: Request) -> Response:
        """Server-Sent Events of one run."""
        watcher = self.watchers.of(request.path_params["run"])
        return StreamingResponse(watcher.listen(), media_type="text/event-stream")

    def routes(self) -> list[Route]:
        """Every route there is, the page's own files first."""
        pages = [Route(address, self.asset) for address in self.bundle.assets]
        return [
            *pages,
            Route("/api/panels", self.panels),
            Route("/api/runs", self.runs),
            Route("/api/compare", self.compare),
            Route("/api/runs/{run}/panels/{panel}", self.panel),
            Route("/api/runs/{run}/panels/{panel}/values/{parameter}", self.values),
            Route("/api/runs/{run}/sql", self.sql, methods=["POST"]),
            Route("/api/runs/{run}/findings", self.findings),
            Route("/api/runs/{run}/stacks", self.stacks),
            Route("/api/runs/{run}/events", self.events),
        ]


def make_app(directory: Path, token: str, *, names: tuple[str, ...] = (), bundle: Bundle | None = None) -> Door:
    """The dashboard over a directory of runs, behind its door; `names` are further names of this machine."""
    dashboard = Dashboard(directory, bundle or Bundle())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await dashboard.examiner.close()
            dashboard.asker.close()

    app = Starlette(
        routes=dashboard.routes(),
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=3)],
        exception_handlers={StethosError: _complain, OSError: _missing},
        lifespan=lifespan,
    )
    return Door(app, token, dashboard.bundle.assets.__contains__, names)


def _panel(request: Request) -> Panel:
    panel = PANELS.get(request.path_params["panel"])
    if panel is None:
        raise UsageError(f"no panel {request.path_params['panel']!r}", hint=f"panels: {', '.join(PANELS)}")
    return panel


async def _statement(request: Request) -> str:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _BODY_BYTES:
            raise UsageError(f"the request is larger than {_BODY_BYTES >> 10} kB", hint="shorten the query")
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("sql"), str):
        raise UsageError("the request has no query", hint='send JSON like {"sql": "SELECT 1"}')
    return str(content["sql"])


def _json(content: Any, status: int = 200) -> Response:
    return Response(encode(content), status, media_type="application/json")


async def _complain(request: Request, error: Exception) -> Response:
    assert isinstance(error, StethosError)
    return _json({"error": error.message, "hint": error.hint}, _STATUS.get(type(error), 500))


async def _missing(request: Request, error: Exception) -> Response:
    """A file that went away, or cannot be read, while we were reading."""
    assert isinstance(error, OSError)
    return _json({"error": f"the run cannot be read: {error.strerror}", "hint": "it may have been deleted"}, 404)
