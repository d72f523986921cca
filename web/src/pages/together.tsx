// The same panel of several runs in one drawing: those of every run, and a panel for every metric that was logged.
import { useMemo, useState } from "preact/hooks";
import { Plot } from "../charts/plot";
import { tableOfCurves } from "../charts/save";
import { curvesOf, type Curves, type Range } from "../charts/series";
import { DataTable } from "../charts/small";
import { seriesColour } from "../colour";
import { useAround, useAsked, useLater } from "../context";
import { plain } from "../format";
import { column, number, type Cell, type Columns, type Given, type Panel } from "../model";
import { Code, Trouble } from "../panel";
import { go, zoomed, zoomOf, type Route } from "../route";
import { Across, groupOf, LogScale, MetricGroups, metricsOf, OURS, Save, Smoothing, type Metric } from "./metrics";

const MOST_PANELS = 24;

export function Together({ route, panel, runs, version, isWide = false }: { route: Route; panel: Panel; runs: string[]; version: string; isWide?: boolean }) {
  const { source, theme } = useAround();
  const [isOpen, setOpen] = useState(false);
  const [isTable, setTable] = useState(false);
  const { answer, complaint } = useAsked(() => Promise.all(runs.map((run) => source.panel(run, panel.name, {}))), `${panel.name} ${runs.join("/")}`, version);
  const data = useMemo(() => (answer === null ? null : together(panel, answer, runs)), [answer]);
  if (complaint !== null) return <Trouble complaint={complaint} />;
  if (data === null) return <section class="card"><div class="skeleton" /></section>;
  if (data.curves.length === 0) return null;
  const [y = ""] = panel.y;
  const what = panel.chart === "stack" ? `${panel.title}: total` : panel.title;
  const samples = (answer ?? []).map((columns) => sampledOf(columns));
  return (
    <section class={`card panel${isWide ? " is-wide" : ""}`} aria-label={what} data-panel={panel.name}>
      <header>
        <h2>{what}</h2>
      </header>
      <p class="note">{panel.note.split(". ")[0]?.replace(/\.$/, "")}.</p>
      {samples.some((one) => one.isSampled) && (
        <p class="note">Samples: {runs.map((run, index) => `${run} ${plain(samples[index]?.points ?? 0)} of ${plain(samples[index]?.steps ?? 0)} steps`).join(", ")}.</p>
      )}
      <Plot
        panel={{ ...panel, chart: "line", marks: "", y: [y] }} data={data} theme={theme} label={what} isNamed
        zoom={zoomOf(route.given, panel.x)} onZoom={(range: Range | null) => go({ ...route, given: zoomed(route.given, panel.x, range) }, true)}
      />
      <footer>
        <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>SQL</button>
        <button type="button" aria-expanded={isTable} onClick={() => setTable(!isTable)}>Table</button>
        <Save title={what} x={panel.x} data={data} columns={null} isLog={panel.scale === "log"} />
        {isOpen && <Code text={answer?.[0]?.sql ?? ""} />}
        {isTable && <div class="behind-table"><DataTable columns={tableOfCurves(panel.x, data)} title={what} /></div>}
      </footer>
    </section>
  );
}

/** How many of a run's steps are in an answer, where it tells; fewer than half are samples. */
function sampledOf(columns: Columns): { points: number; steps: number; isSampled: boolean } {
  const points = column(columns, "sampled").reduce<number>((sum, value) => sum + (number(value) ?? 0), 0);
  const steps = number(column(columns, "of_steps")[0]) ?? 0;
  return { points, steps, isSampled: points < steps / 2 };
}

/** One curve per run: its first curve, or for a stack the height of it. Samples are dots. */
function together(panel: Panel, answers: Columns[], runs: string[]): Curves {
  const each = answers.map((columns) => curvesOf({ ...panel, band: [] }, columns));
  const x = [...new Set(each.flatMap((one) => one.x))].sort((a, b) => a - b);
  const curves = each.flatMap((one, index) => {
    if (one.curves.length === 0) return [];
    const place = new Map(one.x.map((value, row) => [value, row]));
    const values = x.map((value) => {
      const row = place.get(value);
      if (row === undefined) return undefined;
      if (panel.chart === "stack") return one.curves.reduce((sum, curve) => sum + (curve.values[row] ?? 0), 0);
      return one.curves[0]?.values[row];
    });
    const isDots = sampledOf(answers[index] as Columns).isSampled;
    return [{ name: runs[index] ?? "", values, colour: seriesColour(index), ...(isDots ? { isDots } : {}) }];
  });
  return { x, curves, broken: [...new Set(each.flatMap((one) => one.broken))], brokenIn: runs.filter((_, index) => (each[index]?.broken.length ?? 0) > 0) };
}

/** A panel for every metric that one of the runs logged, with a curve for each run that did. */
export function MetricsTogether({ route, runs, version }: { route: Route; runs: string[]; version: string }) {
  const { source, theme } = useAround();
  const { like = "", x = "" } = route.given;
  const wanted = useLater(like); // every run is asked: not at every key
  const { answer, complaint } = useAsked(() => Promise.all(runs.map((run) => source.panel(run, "metrics", { like: wanted, x }))), `${runs.join("/")} ${x} ${wanted}`, version);
  const metrics = useMemo(() => (answer === null ? [] : metricsTogether(answer, runs)), [answer, theme]);
  const set = (changes: Given): void => go({ ...route, given: { ...route.given, ...changes } }, true);
  if (complaint !== null) return <Trouble complaint={complaint} />;
  if (metrics.length === 0 && like === "") return null;
  return (
    <div class="grid is-wide metrics-page" data-panel="metrics-together">
      <section class="card is-wide controls" aria-label="Metrics of these runs">
        <label class="search">
          <span class="sr-only">Search metrics</span>
          <input type="search" placeholder="search metrics" value={like} onInput={(event) => set({ like: event.currentTarget.value })} />
        </label>
        <Across given={route.given} set={set} />
        <Smoothing given={route.given} set={set} />
        <LogScale given={route.given} set={set} />
        <span class="muted">{metrics.length > MOST_PANELS ? `The first ${MOST_PANELS} metrics; search for others.` : "Logged values. Drag to zoom, double-click to show all."}</span>
      </section>
      {metrics.length === 0 && <p class="card is-wide nothing">No metric has that in its name.</p>}
      <MetricGroups metrics={metrics.slice(0, MOST_PANELS)} route={route} x={x || "step"} set={set} />
    </div>
  );
}

/** The metrics of several answers by name; each run has its first line, in its colour. */
function metricsTogether(answers: Columns[], runs: string[]): Metric[] {
  const found = new Map<string, Metric>();
  answers.forEach((columns, index) => {
    for (const one of metricsOf(columns)) {
      const [line] = one.lines;
      if (line === undefined || OURS.test(groupOf(one.name))) continue;
      const known = found.get(one.name) ?? { name: one.name, lines: [], points: 0, steps: null, columns: { ...one.columns, names: ["run", ...one.columns.names], types: ["VARCHAR", ...one.columns.types], values: [[], ...one.columns.values.map((): Cell[] => [])], rows: 0 } };
      const { low: _low, high: _high, ...plainLine } = line;
      const values = [new Array<Cell>(one.columns.rows).fill(runs[index] ?? ""), ...one.columns.values];
      found.set(one.name, {
        ...known,
        lines: [...known.lines, { ...plainLine, name: runs[index] ?? "", colour: seriesColour(index) }],
        points: known.points + one.points,
        columns: { ...known.columns, rows: known.columns.rows + one.columns.rows, values: known.columns.values.map((cells, place) => [...cells, ...(values[place] ?? [])]) },
      });
    }
  });
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}
