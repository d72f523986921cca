"""The application: one table of routes, each with the capability that it needs.

The dashboard's routes need *read*. Commands for other machines (`web/commands.py`) need *read* or *act*; they are
there only where a server has keys, and so TLS. Routes that take rows from others (`collect/routes.py`) need no token:
what they take is signed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from stethos import __version__
from stethos.errors import LiveError, QueryError, RunNotFoundError, StethosError, UsageError
from stethos.export.prometheus import merged
from stethos.schema import TABLES
from stethos.store.deletion import delete_run
from stethos.store.find import is_live
from stethos.store.labels import change_labels
from stethos.store.silences import change_silence
from stethos.web.access import LINK, AccessControl, GuardedRoute
from stethos.web.body import read_object
from stethos.web.commands import AuditLog, Commands
from stethos.web.compare import check_compared
from stethos.web.encode import encode
from stethos.web.events import Watchers
from stethos.web.examine import BackgroundDiagnosis, findings_of
from stethos.web.kept_rows import KeptRows
from stethos.web.keys import INCLUDED, Capability, Keys
from stethos.web.links import Links
from stethos.web.own_panels import OwnPanels
from stethos.web.page_files import PageFiles
from stethos.web.panel import Panel
from stethos.web.panels import PAGES, PANELS
from stethos.web.query_process import QueryProcess
from stethos.web.run_cache import RunCache
from stethos.web.run_table import RunTable
from stethos.web.stacks import stacks_of

_BODY_BYTES = 64 << 10
_ASKED_AT_ONCE, _MOST_ASKED = 2, 10  # queries of all who hold the same: one runs, one is next, others wait
_READ_AT_ONCE = 12  # threads, of 40 that there are
_SCRAPED_S, _SCRAPED_RUNS = 900.0, 20
_EXPOSITION = "text/plain; version=0.0.4"
_Read = TypeVar("_Read")
_STATUS = {RunNotFoundError: 404, QueryError: 400, UsageError: 400, LiveError: 503}


class Dashboard:
    """What the routes answer, over one directory of runs."""

    def __init__(
        self, directory: Path, bundle: PageFiles, own_file: Path | None = None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.cache = RunCache(directory)
        self.bundle = bundle
        # Who holds a link keeps the owner neither from asking nor from the threads that answer everything else.
        holders = (*INCLUDED, LINK)
        self.queries = {holder: QueryProcess() for holder in holders}
        self._asking = {holder: anyio.CapacityLimiter(_ASKED_AT_ONCE) for holder in holders}
        self._asked = dict.fromkeys(holders, 0)
        self._reading = {holder: anyio.CapacityLimiter(_READ_AT_ONCE) for holder in holders}
        self.examiner = BackgroundDiagnosis(self.cache)
        self.table = RunTable(self.cache, KeptRows.of(directory))
        self.own = OwnPanels(directory, own_file)
        self.links = Links.of(directory)
        self._listing = anyio.Lock()
        self.watchers = Watchers(self.cache, self.examiner, is_ending)

    async def _read(self, request: Request, work: Callable[[], _Read]) -> _Read:
        """Do what waits for a reading process in one of the threads for those who may as much as this one."""
        return await to_thread.run_sync(work, limiter=self._reading[request.scope["stethos.holder"]])

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
        may = sorted(INCLUDED[request.scope.get("stethos.capability") or "read"])
        return _told(request, encode({**content, "directory": str(self.cache.directory), "may": may}))

    async def runs(self, request: Request) -> Response:
        """A row for every run in the directory."""
        version = request.query_params.get("version", "")
        async with self._listing:
            await to_thread.run_sync(self.table.learn, self.examiner.conclusions())
            rows = await to_thread.run_sync(lambda: self.table.rows(is_first=version == ""))
            body = await to_thread.run_sync(self.table.answer, rows, version)
        self.examiner.poke_next(rows)
        return Response(body, media_type="application/json")

    async def list_ahead(self) -> None:
        """Look at the runs before anybody asks: whoever starts a server opens the page a moment later."""
        await to_thread.run_sync(self.cache.readers.begin)
        async with self._listing:
            rows = await to_thread.run_sync(lambda: self.table.rows(is_first=True))
            await to_thread.run_sync(self.table.answer, rows, "")

    async def own_panels(self, request: Request) -> Response:
        """The user's own panels and views."""
        return _told(request, encode(await to_thread.run_sync(self.own.as_dict)))

    async def save_own(self, request: Request) -> Response:
        """Save a panel or a view beside the runs, or remove one."""
        content = await read_object(request, _BODY_BYTES)
        return _json(await to_thread.run_sync(self.own.change, content))

    async def list_links(self, request: Request) -> Response:
        """The read-only links that hold."""
        return _json({"links": [one.as_dict() for one in await to_thread.run_sync(self.links.all)]})

    async def add_link(self, request: Request) -> Response:
        """A new read-only link; its token is told once."""
        content = await read_object(request, _BODY_BYTES)
        link, token = await to_thread.run_sync(self.links.add, str(content.get("note", "")))
        return _json({**link.as_dict(), "token": token})

    async def revoke_link(self, request: Request) -> Response:
        """Take a read-only link back."""
        content = await read_object(request, _BODY_BYTES)
        return _json((await to_thread.run_sync(self.links.revoke, str(content.get("id", "")))).as_dict())

    async def silence(self, request: Request) -> Response:
        """Acknowledge or silence a finding of a run, or undo that."""
        place = self.cache.place(request.path_params["run"])
        content = await read_object(request, _BODY_BYTES)
        known = await to_thread.run_sync(change_silence, place, content)
        return _json({key: one.as_dict() for key, one in known.items()})

    async def label(self, request: Request) -> Response:
        """Change what people have added to a run."""
        place = self.cache.place(request.path_params["run"])
        changes = await read_object(request, _BODY_BYTES)
        return _json((await to_thread.run_sync(change_labels, place, changes)).as_dict())

    async def delete(self, request: Request) -> Response:
        """Delete a run that is over; its name has to be given once more."""
        place = self.cache.place(request.path_params["run"])
        content = await read_object(request, _BODY_BYTES)
        if content.get("name") != place.name:
            raise UsageError("the name of the run is not confirmed", hint=f'send {{"name": "{place.name}"}}')
        if is_live(place):
            raise UsageError(f"{place.name} is still running", hint="wait for it to end, or use `stethos rm --force`")
        await to_thread.run_sync(delete_run, place.path)
        return _json({"deleted": place.name})

    async def compare(self, request: Request) -> Response:
        """Runs side by side; those that the query string names."""
        first, *others = check_compared(request.query_params.getlist("run"))
        key = ("compare", *others)
        body = await self._read(request, lambda: self.cache.answer(first, key, "compare", others))
        return _told(request, body)

    async def panel(self, request: Request) -> Response:
        """One panel's numbers; its parameters are those of the query string."""
        name, panel = request.path_params["run"], _panel(request)
        given = dict(request.query_params)
        panel.query(**given)  # complain before anything is opened
        key = (panel.name, *sorted(f"{parameter}={value}" for parameter, value in given.items()))
        body = await self._read(
            request, lambda: self.cache.answer(name, key, "panel", which=panel.name, parameters=given)
        )
        return _told(request, body)

    async def values(self, request: Request) -> Response:
        """What a parameter of a panel can be."""
        name, panel = request.path_params["run"], _panel(request)
        parameter = next((one for one in panel.parameters if one.name == request.path_params["parameter"]), None)
        if parameter is None or not parameter.values:
            return _json({"error": "no such parameter", "hint": "see /api/panels"}, 404)
        sql = parameter.values
        body = await self._read(request, lambda: self.cache.answer(name, ("values", sql), "values", sql=sql))
        return _told(request, body)

    async def sql(self, request: Request) -> Response:
        """Any reading query, within limits of time, rows and memory."""
        content = await read_object(request, _BODY_BYTES)
        if not isinstance(content.get("sql"), str):
            raise UsageError("the request has no query", hint='send JSON like {"sql": "SELECT 1"}')
        place = self.cache.place(request.path_params["run"])
        holder = request.scope["stethos.holder"]
        if self._asked[holder] >= _MOST_ASKED:
            raise QueryError("too many queries are waiting", hint="try again when they have ended")
        self._asked[holder] += 1
        try:
            ask = self.queries[holder].ask
            answer = await to_thread.run_sync(ask, place.path, content["sql"], limiter=self._asking[holder])
        finally:
            self._asked[holder] -= 1
        return Response(answer, media_type="application/json")

    async def findings(self, request: Request) -> Response:
        """What is wrong with a run; a diagnosis that is not up to date is begun anew in the background."""
        name = request.path_params["run"]
        version = await to_thread.run_sync(lambda: self.cache.version(name, with_findings=False))
        known = self.examiner.poke(name, version)
        return _told(request, await self._read(request, lambda: encode(findings_of(self.cache, name, known))))

    async def stacks(self, request: Request) -> Response:
        """Where the run's processes are now; they are read from outside."""
        place = self.cache.place(request.path_params["run"])
        return _json(await self._read(request, lambda: stacks_of(place)))

    async def metrics(self, request: Request) -> Response:
        """The present state of the live runs, and of those that ended a moment ago, for Prometheus to scrape."""

        def expose() -> str:
            names = [place.name for place in self.cache.recent(_SCRAPED_S)][:_SCRAPED_RUNS]
            return merged(json.loads(self.cache.answer(name, ("metrics",), "metrics")) for name in names)

        return Response(await self._read(request, expose), media_type=_EXPOSITION)

    async def events(self, request: Request) -> Response:
        """Server-Sent Events of one run."""
        watcher = self.watchers.of(request.path_params["run"])
        return StreamingResponse(watcher.listen(), media_type="text/event-stream")

    def routes(self) -> list[GuardedRoute]:
        """Every route of the dashboard, the page's own files first."""
        return [
            *(GuardedRoute(address, self.asset, None) for address in self.bundle.assets),
            GuardedRoute("/api/panels", self.panels, "read"),
            GuardedRoute("/api/runs", self.runs, "read"),
            GuardedRoute("/api/compare", self.compare, "read"),
            GuardedRoute("/api/own", self.own_panels, "read"),
            GuardedRoute("/api/own/save", self.save_own, "edit", "POST"),
            GuardedRoute("/api/links", self.list_links, "edit"),
            GuardedRoute("/api/links/new", self.add_link, "edit", "POST"),
            GuardedRoute("/api/links/revoke", self.revoke_link, "edit", "POST"),
            GuardedRoute("/api/runs/{run}/silences", self.silence, "edit", "POST"),
            GuardedRoute("/metrics", self.metrics, "read"),
            GuardedRoute("/api/runs/{run}/panels/{panel}", self.panel, "read"),
            GuardedRoute("/api/runs/{run}/panels/{panel}/values/{parameter}", self.values, "read"),
            GuardedRoute("/api/runs/{run}/labels", self.label, "edit", "POST"),
            GuardedRoute("/api/runs/{run}/delete", self.delete, "edit", "POST"),
            GuardedRoute("/api/runs/{run}/sql", self.sql, "read", "POST"),
            GuardedRoute("/api/runs/{run}/findings", self.findings, "read"),
            GuardedRoute("/api/runs/{run}/stacks", self.stacks, "read"),
            GuardedRoute("/api/runs/{run}/events", self.events, "read"),
        ]


def make_app(
    directory: Path, tokens: Mapping[str, Capability], *, keys: Keys | None = None, names: tuple[str, ...] = (),
    bundle: PageFiles | None = None, on_pass: Callable[[tuple[str, int]], None] | None = None,
    more: Sequence[GuardedRoute] = (), own_file: Path | None = None, is_ending: Callable[[], bool] = lambda: False,
) -> AccessControl:  # fmt: skip
    """The application over a directory of runs; with `keys` also the commands for those who have their tokens.

    `names` are further names of this machine; `on_pass` is called with the peer of each request with a valid token;
    `more` are further routes, as those of a collector; `own_file` has panels and views of the user's own. Streams of
    events end once `is_ending`.
    """
    dashboard = Dashboard(directory, bundle or PageFiles(), own_file, is_ending)
    routes = [*more, *dashboard.routes()]  # what thousands of clients ask for is looked up first
    on_refusal: Callable[[str, str, str, int], Awaitable[None]] | None = None
    if keys is not None:
        audit = AuditLog(keys.directory / "audit.jsonl")
        routes += Commands(directory, audit).routes()
        tokens, on_refusal = {**tokens, **keys.tokens}, audit.refused

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        ahead = asyncio.create_task(dashboard.list_ahead())
        try:
            yield
        finally:
            await asyncio.gather(ahead, return_exceptions=True)
            await dashboard.examiner.close()
            for queries in dashboard.queries.values():
                await to_thread.run_sync(queries.close)
            dashboard.table.close()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=3)],
        exception_handlers={StethosError: _complain, OSError: _missing},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return AccessControl(app, routes, tokens, names, on_pass, on_refusal, dashboard.links.allows)


def _panel(request: Request) -> Panel:
    panel = PANELS.get(request.path_params["panel"])
    if panel is None:
        raise UsageError(f"no panel {request.path_params['panel']!r}", hint=f"panels: {', '.join(PANELS)}")
    return panel


def _told(request: Request, body: bytes) -> Response:
    """An answer, or where the asker has it already, as its If-None-Match says, that alone."""
    tag = f'"{blake2b(body, digest_size=9).hexdigest()}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return Response(body, media_type="application/json", headers={"etag": tag})


def _json(content: Any, status: int = 200) -> Response:
    return Response(encode(content), status, media_type="application/json")


async def _complain(request: Request, error: Exception) -> Response:
    assert isinstance(error, StethosError)
    return _json({"error": error.message, "hint": error.hint}, _STATUS.get(type(error), 500))


async def _missing(request: Request, error: Exception) -> Response:
    """A file that went away, or cannot be read, while we were reading."""
    assert isinstance(error, OSError)
    return _json({"error": f"the run cannot be read: {error.strerror}", "hint": "it may have been deleted"}, 404)
