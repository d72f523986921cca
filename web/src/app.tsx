// The frame of the page: where one is, where one can go, light or dark.
import { useEffect, useMemo, useState } from "preact/hooks";
import { State } from "./charts/small";
import { Around, useAround, useAsked, useDiagnosis, usePanel, useVersion, type Asked } from "./context";
import { label } from "./format";
import { keep, kept } from "./kept";
import { column, type Catalogue, type Diagnosis, type Own } from "./model";
import { ComparePage } from "./pages/compare";
import { MetricsPage } from "./pages/metrics";
import { OwnPage, SaveView } from "./pages/own";
import { RunPage } from "./pages/run";
import { Progress, Share } from "./pages/share";
import { RunsPage } from "./pages/runs";
import { SqlPage } from "./pages/sql";
import { Trouble } from "./panel";
import { address, useRoute, type Route } from "./route";
import { Report, type Complaint, type Source } from "./source";

const THEME = "stethos-theme";

export function App({ source }: { source: Source }) {
  const { answer, complaint } = useAsked(() => source.catalogue(), "");
  const [theme, turn] = useTheme();
  if (answer === null) return complaint === null ? null : <Refused complaint={complaint} />;
  return <Inside source={source} catalogue={answer} theme={theme} turn={turn} />;
}

interface Framed {
  source: Source;
  catalogue: Catalogue;
  theme: string;
  turn: () => void;
}

function Inside({ source, catalogue, theme, turn }: Framed) {
  const told = useRoute();
  const route = source instanceof Report && told.run !== source.carried.run ? { page: "overview", run: source.carried.run, given: {} } : told;
  const own = useOwn(source);
  const around = useMemo(() => ({ source, catalogue, theme }), [source, catalogue, theme]);
  useEffect(() => {
    document.title = route.run === "" ? "Stethos" : `${route.run} · Stethos`;
  }, [route.run]);
  return (
    <Around.Provider value={around}>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to the content
      </a>
      {route.run === "" ? <Outer route={route} theme={theme} turn={turn} own={own} /> : <InRun key={route.run} route={route} theme={theme} turn={turn} own={own} />}
    </Around.Provider>
  );
}

interface Shown {
  route: Route;
  theme: string;
  turn: () => void;
  own: Asked<Own>;
}

/** The user's own panels and views, asked for anew when the page has saved one. */
function useOwn(source: Source): Asked<Own> {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const changed = (): void => setTurn((before) => before + 1);
    addEventListener("stethos-own", changed);
    return () => removeEventListener("stethos-own", changed);
  }, []);
  return useAsked(() => source.own(), "own", String(turn));
}

function Outer({ route, theme, turn, own }: Shown) {
  return (
    <Frame route={route} theme={theme} turn={turn} own={own} title={route.page === "compare" ? "Compare" : "Runs"} version="">
      {route.page === "compare" ? <ComparePage route={route} /> : <div class="grid"><RunsPage route={route} /></div>}
    </Frame>
  );
}

function InRun({ route, theme, turn, own }: Shown) {
  const { catalogue, source } = useAround();
  const isPage = Object.hasOwn(catalogue.pages, route.page) || (!source.isReport && /^(sql|views)$/.test(route.page));
  const { version, isGone } = useVersion(route.run);
  const diagnosis = useDiagnosis(route.run, version);
  const summary = usePanel(route.run, "summary", {}, version);
  const state = summary.answer === null ? "" : String(column(summary.answer, "state")[0] ?? "");
  const isUnknown = summary.complaint?.status === 404 && summary.answer === null;
  const found = diagnosis.answer?.conclusion;
  return (
    <Frame route={route} theme={theme} turn={turn} own={own} title={route.run} state={state} version={version} isFederated={summary.answer === null || column(summary.answer, "rounds")[0] !== null || Number(column(summary.answer, "clients")[0]) > 0} wrong={Math.max(0, (found?.problems ?? 0) + (found?.over ?? 0) - silenced(diagnosis.answer))} worst={found?.colour === "red" ? "error" : "warning"}>
      {(isGone || isUnknown) && (
        <p class="trouble" role="alert">
          {summary.answer === null && version === "" ? "This run does not exist (yet)." : "This run has been deleted. You see its last known state."}
          <small>
            <a href={address({ page: "runs", run: "", given: {} })}>All runs</a>
          </small>
        </p>
      )}
      {summary.complaint !== null && summary.complaint.status !== 404 && <Trouble complaint={summary.complaint} />}
      {!isPage && (
        <p class="card nothing">
          There is no page called “{label(route.page)}”. <a href={address({ ...route, page: "overview", given: {} })}>Overview</a>
        </p>
      )}
      {isUnknown || !isPage ? null : route.page === "sql" && !source.isReport ? <SqlPage route={route} /> : route.page === "views" && !source.isReport ? <OwnPage route={route} version={version} own={own.answer} complaint={own.complaint} /> : route.page === "metrics" ? <MetricsPage route={route} version={version} /> : <RunPage route={route} version={version} state={state} diagnosis={diagnosis} />}
    </Frame>
  );
}

/** How many problems somebody has seen to: they are not counted beside the page. */
function silenced(diagnosis: Diagnosis | null): number {
  return (diagnosis?.findings ?? []).filter((one) => one.severity !== "info" && diagnosis?.silences?.[one.key ?? ""] !== undefined).length;
}

interface FrameProps extends Shown {
  title: string;
  state?: string;
  version: string;
  wrong?: number;
  isFederated?: boolean;
  worst?: string;
  children: preact.ComponentChildren;
}

function Frame({ route, theme, turn, own, title, state = "", version, wrong = 0, isFederated = true, worst = "", children }: FrameProps) {
  const { catalogue, source } = useAround();
  const pages = Object.entries(catalogue.pages).filter(([page]) => page !== "clients" || isFederated || route.page === page);
  useEffect(() => {
    document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }); // a phone's row of pages is longer than its screen
  }, [route.page, route.run]);
  const keep = (page: string): Record<string, string> => (page === route.page ? route.given : {});
  return (
    <div class="frame">
      <nav class="side" aria-label="Pages">
        <a class="brand" href={address({ page: "runs", run: "", given: {} })} aria-label="Stethos: all runs">
          <Logo />
          <span>Stethos</span>
        </a>
        {!source.isReport && (
          <div class="nav-group">
            <Link route={route} to={{ page: "runs", run: "", given: {} }} title="Runs" />
            <Link route={route} to={{ page: "compare", run: "", given: {} }} title="Compare" />
          </div>
        )}
        {route.run !== "" && (
          <div class="nav-group">
            <span class="nav-title">{route.run}</span>
            {pages.map(([page, name]) => (
              <Link
                key={page} route={route} to={{ page, run: route.run, given: keep(page) }} title={name}
                badge={page === "findings" && wrong > 0 ? String(wrong) : ""} severity={worst}
              />
            ))}
            {!source.isReport && <Link route={route} to={{ page: "sql", run: route.run, given: {} }} title="SQL" />}
            {!source.isReport && <Link route={route} to={{ page: "views", run: route.run, given: {} }} title="Own panels" badge={own.answer !== null && own.answer.panels.length > 0 ? String(own.answer.panels.length) : ""} severity="quiet" />}
          </div>
        )}
        {own.answer !== null && own.answer.views.length > 0 && (
          <div class="nav-group">
            <span class="nav-title">Saved views</span>
            {own.answer.views.slice(0, 30).map((one) => <a key={one.name} href={one.address} aria-current={one.address === address(route) ? "page" : undefined}>{one.name}</a>)}
          </div>
        )}
        <div class="side-foot">
          <button type="button" onClick={turn} title="Light or dark">
            {theme === "dark" ? "☀ light" : "☾ dark"}
          </button>
          <span class="muted">{catalogue.version}</span>
        </div>
      </nav>
      <main id="main" tabIndex={-1}>
        <div class="top">
          <h1>{title}</h1>
          {state !== "" && <State state={state} />}
          {route.run !== "" && <span class="crumb">{route.page === "sql" ? "SQL" : route.page === "views" ? "Own panels" : catalogue.pages[route.page]}</span>}
          {state === "running" && !source.isReport && <Progress run={route.run} version={version} />}
          <span class="top-tools">
            {!source.isReport && catalogue.may?.includes("edit") && <SaveView route={route} />}
            <Share />
          </span>
        </div>
        {children}
      </main>
    </div>
  );
}

interface Linked {
  route: Route;
  to: Route;
  title: string;
  badge?: string;
  severity?: string;
}

function Link({ route, to, title, badge = "", severity = "" }: Linked) {
  const isHere = route.page === to.page && route.run === to.run;
  return (
    <a href={address(to)} aria-current={isHere ? "page" : undefined}>
      {title}
      {badge !== "" && <span class={`badge is-${severity}`}>{badge}</span>}
    </a>
  );
}

function Refused({ complaint }: { complaint: Complaint }) {
  const [token, setToken] = useState("");
  const enter = (event: Event): void => {
    event.preventDefault();
    location.hash = `token=${encodeURIComponent(token.replace(/.*token=/, ""))}`;
    location.reload();
  };
  return (
    <div class="refused card">
      <Logo />
      <h1>{complaint.status === 401 ? "Enter the token" : "The server is not responding"}</h1>
      <p>{complaint.message}</p>
      <p class="muted">{complaint.hint}</p>
      {complaint.status === 401 && (
        <form onSubmit={enter}>
          <label>
            Token, or the whole address
            <input type="password" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />
          </label>
          <button class="button" type="submit">Enter</button>
        </form>
      )}
    </div>
  );
}

function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <path d="M6 4H4v7a7 7 0 0 0 14 0V4h-2" />
      <path d="M11 18v3.5a6.5 6.5 0 0 0 13 0V18" />
      <circle cx="24" cy="14.5" r="3.2" />
    </svg>
  );
}

function useTheme(): [string, () => void] {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const wanted = (): string => kept(THEME) ?? (preferred.matches ? "dark" : "light");
  const [theme, setTheme] = useState(() => {
    document.documentElement.dataset.theme = wanted();
    return wanted();
  });
  useEffect(() => {
    const changed = (): void => show(wanted());
    preferred.addEventListener("change", changed);
    return () => preferred.removeEventListener("change", changed);
  }, []);
  const show = (next: string): void => {
    document.documentElement.dataset.theme = next;
    setTheme(next);
  };
  return [
    theme,
    () => {
      const next = theme === "dark" ? "light" : "dark";
      keep(THEME, next);
      show(next);
    },
  ];
}

