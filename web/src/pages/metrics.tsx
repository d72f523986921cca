// Every metric its own panel, grouped by the part of its name before the last "/".
import { useMemo, useState } from "preact/hooks";
import { Plot } from "../charts/plot";
import type { Curves, Range } from "../charts/series";
import { svgOf, type Look } from "../charts/lines_svg";
import { csvOf, savePng, saveText, tableOfCurves } from "../charts/save";
import { DataTable } from "../charts/small";
import { isLeaping, placed, together, withGaps, type Line } from "../charts/smooth";
import { seriesColour } from "../colour";
import { useAround, useAsked, usePanel, type Asked } from "../context";
import { label, plain } from "../format";
import { column, number, type Columns, type Given, type Panel } from "../model";
import { Behind, LogNote, Sampled, Segments, Trouble } from "../panel";
import { address, go, zoomed, zoomOf, type Route } from "../route";
import { Media } from "./media";

const MOST_LINES = 40;
const PREVIEWED = 6;
const PER_PAGE = 60;
export const OURS = /^(steps|rounds)$/; // groups of numbers that other panels draw, too

export interface Metric {
  name: string;
  lines: Line[];
  points: number;
  /** How many steps there were, where only some were sampled. */
  steps: number | null;
  columns: Columns;
}

/** The metrics in an answer, each with its lines. */
export function metricsOf(columns: Columns): Metric[] {
  const [names, series, x, y, low, high, broken, points, steps] = ["name", "series", "x", "value", "low_end", "high_end", "broken", "points", "of_steps"].map((name) => column(columns, name)) as Columns["values"];
  const found = new Map<string, Map<string, Required<Pick<Line, "x" | "y" | "low" | "high">> & { points: number }>>();
  const rows = new Map<string, number[]>();
  const of = new Map<string, number | null>();
  (names ?? []).forEach((value, row) => {
    const at = number(x?.[row]);
    if (at === null) return;
    const name = String(value);
    const lines = found.get(name) ?? found.set(name, new Map()).get(name);
    const key = String(series?.[row]);
    const line = lines?.get(key) ?? { x: [], y: [], low: [], high: [], points: 0 };
    lines?.set(key, line);
    line.x.push(at);
    const told = number(y?.[row]);
    line.y.push((number(broken?.[row]) ?? 0) > 0 && Number.isFinite(told) ? Number.NaN : told);
    line.low.push(number(low?.[row]));
    line.high.push(number(high?.[row]));
    line.points += number(points?.[row]) ?? 0;
    (rows.get(name) ?? rows.set(name, []).get(name))?.push(row);
    of.set(name, number(steps?.[row]));
  });
  return [...found].map(([name, lines]) => {
    const total = [...lines.values()].reduce((sum, line) => sum + line.points, 0);
    const steps = of.get(name) ?? null;
    const isSampled = steps !== null && total < steps / 2;
    const mine = rows.get(name) ?? [];
    return {
      name,
      points: total,
      steps,
      lines: [...lines].slice(0, MOST_LINES).map(([key, line], index) => ({
        name: key, x: line.x, y: line.y, colour: seriesColour(index), ...(isSampled ? { isDots: true } : {}),
        ...(line.points > line.x.length ? { low: line.low, high: line.high } : {}),
      })),
      columns: { ...columns, rows: mine.length, values: columns.values.map((values) => mine.map((row) => values[row] ?? null)) },
    };
  });
}

/** What a federation logged that is its rounds' loss or accuracy once more: pairs of names. */
function repeated(metrics: Metric[]): [logged: Metric, ofRounds: Metric][] {
  const told = new Map(metrics.map((one) => [one.name, one]));
  return metrics.flatMap((logged): [Metric, Metric][] => {
    const ofRounds = told.get(`rounds/${logged.name}`);
    return ofRounds !== undefined && isSame(logged.lines, ofRounds.lines) ? [[logged, ofRounds]] : [];
  });
}

function isSame(lines: Line[], others: Line[]): boolean {
  const [one, other] = [lines[0], others[0]];
  if (one === undefined || other === undefined || lines.length !== 1 || others.length !== 1) return false;
  return one.y.length === other.y.length && one.y.every((value, row) => Object.is(value, other.y[row]) && one.x[row] === other.x[row]);
}

interface Axed extends Asked<Columns> {
  metrics: Metric[];
  /** What was asked for in the end, and the axis that is drawn over where nobody chose one. */
  asked: Given;
  usual: "step" | "round";
}

/** The metrics of a run: over its rounds where nobody chose an axis and all would stand at one step, as in a server that trains nothing. */
function useMetrics(run: string, wanted: Given, version: string): Axed {
  const { source } = useAround();
  const first = usePanel(run, "metrics", wanted, version);
  const found = useMemo(() => (first.answer === null ? [] : metricsOf(first.answer)), [first.answer]);
  const isStill = !wanted.x && !source.isReport && found.some((one) => one.lines.some((line) => line.x.length > 1)) && found.every((one) => one.lines.every((line) => line.x.every((x) => x === line.x[0])));
  const byRound = { ...wanted, x: "round" };
  const second = useAsked(() => (isStill ? source.panel(run, "metrics", byRound) : Promise.resolve(null)), JSON.stringify([run, byRound, isStill]), version);
  const moved = useMemo(() => (isStill && second.answer !== null ? metricsOf(second.answer) : []), [isStill, second.answer]);
  if (moved.length === 0 || second.answer === null) return { ...first, metrics: found, asked: wanted, usual: "step" };
  return { ...first, answer: second.answer, metrics: moved, asked: byRound, usual: "round" };
}

export function groupOf(name: string): string {
  const end = name.lastIndexOf("/");
  return end > 0 ? name.slice(0, end) : "";
}

export function MetricsPage({ route, version }: { route: Route; version: string }) {
  const { catalogue, source } = useAround();
  const panel = catalogue.panels.find((one) => one.name === "metrics") as Panel;
  const { like = "", from = "" } = route.given;
  const wanted: Given = source.isReport ? {} : { x: route.given.x ?? "", like, from };
  const { answer, complaint, metrics, asked, usual } = useMetrics(route.run, wanted, version);
  const x = asked.x || "step";
  const set = (changes: Given): void => go({ ...route, given: { ...route.given, ...changes } }, true);
  const twice = useMemo(() => repeated(metrics).map(([, ofRounds]) => ofRounds), [metrics]);
  const shown = metrics.filter((one) => one.name.toLowerCase().includes(like.toLowerCase()) && !twice.includes(one));
  const all = answer === null ? 0 : (number(column(answer, "names")[0]) ?? 0);
  const isEmpty = answer !== null && all === 0 && like === "";
  const first = Number(from) || 0;
  return (
    <div class="grid metrics-page">
      {!isEmpty && <section class="card is-wide controls" aria-label="Controls">
        <label class="search">
          <span class="sr-only">Search metrics</span>
          <input type="search" placeholder={answer === null ? "search metrics" : `search ${plain(all - twice.length)} metrics`} value={like} onInput={(event) => set({ like: event.currentTarget.value, from: "" })} />
        </label>
        {!source.isReport && <Across given={route.given} set={set} usual={usual} />}
        <Smoothing given={route.given} set={set} />
        <LogScale given={route.given} set={set} />
        <span class="muted">Drag to zoom, double-click to show all.</span>
      </section>}
      {complaint !== null && <Trouble complaint={complaint} />}
      {answer === null && complaint === null && <div class="card is-wide"><div class="skeleton" /></div>}
      {answer !== null && shown.length === 0 && (
        <p class="card is-wide nothing">{like === "" ? "No metric was logged, and no step was made." : "No metric has that in its name."}</p>
      )}
      <MetricGroups metrics={shown} route={route} x={x} set={set} />
      {all > PER_PAGE && !source.isReport && (
        <nav class="pager is-wide" aria-label="More metrics">
          <button type="button" class="button is-quiet" disabled={first === 0} onClick={() => set({ from: String(Math.max(0, first - PER_PAGE) || "") })}>
            Previous
          </button>
          <span>
            {plain(first + 1)} to {plain(Math.min(all, first + PER_PAGE))} of {plain(all)}
          </span>
          <button type="button" class="button is-quiet" disabled={first + PER_PAGE >= all} onClick={() => set({ from: String(first + PER_PAGE) })}>
            Next
          </button>
        </nav>
      )}
      <Media route={route} version={version} like={like} />
      {answer !== null && !isEmpty && (
        <section class="card panel is-wide is-foot" aria-label="Numbers of this page">
          <p class="note">The numbers of all panels above</p>
          <Behind run={route.run} panel={panel} given={asked} sql={answer.sql} isCut={answer.is_cut} columns={answer} />
        </section>
      )}
    </div>
  );
}

export function Smoothing({ given, set }: { given: Given; set: (changes: Given) => void }) {
  return (
    <label class="smoothing">
      smoothing
      <input type="range" min="0" max="0.99" step="0.01" value={given.smooth ?? "0"} onInput={(event) => set({ smooth: event.currentTarget.value === "0" ? "" : event.currentTarget.value })} />
      <output>{given.smooth || "0"}</output>
    </label>
  );
}

/** Over what curves are drawn: steps, rounds, time or samples. */
export function Across({ given, set, usual = "step" }: { given: Given; set: (changes: Given) => void; usual?: string }) {
  const options = useAround().catalogue.panels.find((one) => one.name === "metrics")?.parameters[0]?.options ?? {};
  return <Segments title="x axis" names={Object.keys(options)} chosen={given.x || usual} choose={(value) => set({ x: value === usual ? "" : value })} />;
}

/** The column of an x axis, which says how its values are written. */
export function axisName(x = ""): string {
  return x === "clock" ? "t_ns" : x || "step";
}

/** Linear or logarithmic; unless it is chosen each drawing decides, and says so. */
export function LogScale({ given, set }: { given: Given; set: (changes: Given) => void }) {
  return (
    <label>
      scale{" "}
      <select value={given.log === "1" || given.log === "0" ? given.log : ""} onChange={(event) => set({ log: event.currentTarget.value })}>
        <option value="">automatic</option>
        <option value="0">linear</option>
        <option value="1">logarithmic</option>
      </select>
    </label>
  );
}

/** Whether values are drawn on a logarithmic scale: as chosen, else where nearly all would lie on one line. */
export function logOf(given: Given, values: (number | null)[][]): { isLog: boolean; isChosen: boolean } {
  const isChosen = given.log === "1" || given.log === "0";
  return { isChosen, isLog: isChosen ? given.log === "1" : isLeaping(values.flat()) };
}

/** A panel for each metric, grouped by the part of the name before the last "/". */
export function MetricGroups({ metrics, route, x, set }: { metrics: Metric[]; route: Route; x: string; set: (changes: Given) => void }) {
  const groups = new Map<string, Metric[]>();
  for (const one of metrics) (groups.get(groupOf(one.name)) ?? groups.set(groupOf(one.name), []).get(groupOf(one.name)))?.push(one);
  return <>{[...groups].map(([group, members]) => <Group key={group} title={group} members={members} route={route} x={x} set={set} />)}</>;
}

function Group({ title, members, route, x, set }: { title: string; members: Metric[]; route: Route; x: string; set: (changes: Given) => void }) {
  const [isOpen, setOpen] = useState(true);
  return (
    <>
      <h2 class="divider is-wide">
        <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          {isOpen ? "▾" : "▸"} {title === "" ? "logged" : label(title)} <span class="muted">{members.length}</span>
        </button>
      </h2>
      {isOpen && members.map((one) => <MetricCard key={one.name} metric={one} route={route} x={x} set={set} />)}
    </>
  );
}

export function MetricCard({ metric, route, x, set }: { metric: Metric; route: Route; x: string; set?: (changes: Given) => void }) {
  const { theme } = useAround();
  const [limits, setLimits] = useState<[number | null, number | null]>([null, null]);
  const [isTable, setTable] = useState(false);
  const [isLarge, setLarge] = useState(false);
  const weight = Math.min(0.99, Math.max(0, Number(route.given.smooth) || 0));
  const { isLog, isChosen } = useMemo(() => logOf(route.given, metric.lines.map((line) => line.y)), [metric, route.given.log]);
  const lines = useMemo(() => metric.lines.map(withGaps), [metric]);
  const inPlace = useMemo(() => placed(lines, isLog), [lines, isLog, theme]);
  const data = useMemo(() => together(inPlace, weight), [inPlace, weight]);
  const name = axisName(x);
  const isSampled = metric.lines.some((line) => line.isDots);
  const shown: Curves = isSampled && name === "step" && metric.steps !== null ? { ...data, reach: metric.steps } : data;
  const zoom = zoomOf(route.given, name);
  const last = metric.lines.length === 1 ? metric.lines[0]?.y.at(-1) : null;
  const title = label(metric.name);
  const end = set === undefined || groupOf(metric.name) === "" ? title : label(metric.name.slice(groupOf(metric.name).length + 1));
  return (
    <section class={`card panel is-line${isLarge ? " is-wide" : ""}`} aria-label={title} data-metric={metric.name}>
      <header>
        <h3 title={title}>{end}</h3>
        <span class="muted">{last === undefined || last === null ? "" : `last ${plain(last)}`}</span>
      </header>
      {isSampled && (
        <Sampled points={metric.points} steps={metric.steps ?? 1} columns={metric.columns} />
      )}
      {isLog && !isChosen && <LogNote />}
      <Plot
        panel={{ x: name, y: ["value"], unit: "", scale: isLog ? "log" : "linear", marks: x === "step" || x === "round" ? x : "", chart: "line" }}
        data={shown} theme={theme} height={isLarge ? 460 : 230} label={`${title}: ${plain(metric.points)} points${last == null ? "" : `, last ${plain(last)}`}`}
        limits={limits} {...(set === undefined ? {} : { zoom, onZoom: (range: Range | null) => set(zoomed({}, name, range)) })}
      />
      <footer>
        <Limits limits={limits} setLimits={setLimits} />
        <button type="button" aria-pressed={isLarge} onClick={() => setLarge(!isLarge)}>{isLarge ? "Smaller" : "Larger"}</button>
        <button type="button" aria-expanded={isTable} onClick={() => setTable(!isTable)}>Table</button>
        <Save title={metric.name} x={name} data={shown} columns={metric.columns} isLog={isLog} look={{ zoom, limits }} />
        {isTable && <div class="behind-table"><DataTable columns={metric.columns} title={title} /></div>}
      </footer>
    </section>
  );
}

function Limits({ limits, setLimits }: { limits: [number | null, number | null]; setLimits: (limits: [number | null, number | null]) => void }) {
  const read = (text: string): number | null => (text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text));
  return (
    <details class="limits">
      <summary>y axis</summary>
      <label>
        from <input type="number" step="any" value={limits[0] ?? ""} onChange={(event) => setLimits([read(event.currentTarget.value), limits[1]])} />
      </label>
      <label>
        to <input type="number" step="any" value={limits[1] ?? ""} onChange={(event) => setLimits([limits[0], read(event.currentTarget.value)])} />
      </label>
    </details>
  );
}

/** The drawing and its numbers as files. */
export function Save({ title, x, data, columns, isLog = false, look = {} }: { title: string; x: string; data: Curves; columns: Columns | null; isLog?: boolean; look?: Look }) {
  const svg = (): string => svgOf(title, { x, y: ["value"], unit: "", scale: isLog ? "log" : "linear", chart: "line" }, data, look);
  return (
    <span class="save" role="group" aria-label={`Save ${label(title)}`}>
      <button type="button" onClick={() => void savePng(svg(), `${title}.png`)}>PNG</button>
      <button type="button" onClick={() => saveText(svg(), `${title}.svg`, "image/svg+xml")}>SVG</button>
      <button type="button" onClick={() => saveText(csvOf(columns ?? tableOfCurves(x, data)), `${title}.csv`, "text/csv")}>CSV</button>
    </span>
  );
}

/** The first few metrics, on the overview. */
export function MetricsPreview({ route, version }: { route: Route; version: string }) {
  const { answer, metrics, usual } = useMetrics(route.run, {}, version);
  const twice = useMemo(() => repeated(metrics).map(([logged]) => logged), [metrics]);
  const logged = metrics.filter((one) => !OURS.test(groupOf(one.name)) && !twice.includes(one));
  if (logged.length === 0) return null;
  const all = (number(column(answer as Columns, "names")[0]) ?? 0) - twice.length;
  return (
    <section class="card is-wide preview" aria-labelledby="title-metrics" data-panel="metrics">
      <header>
        <h2 id="title-metrics">Logged values</h2>
        <a href={address({ ...route, page: "metrics", given: {} })}>All {plain(all)} metrics</a>
      </header>
      <div class="grid">
        {logged.slice(0, PREVIEWED).map((one) => (
          <MetricCard key={one.name} metric={one} route={{ ...route, given: {} }} x={usual} />
        ))}
      </div>
    </section>
  );
}
