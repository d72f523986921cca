// One metric of many runs in one drawing: a curve for each run, or the mean and the range of each group.
import { useMemo, useRef, useState } from "preact/hooks";
import { Plot } from "../charts/plot";
import { tableOfCurves } from "../charts/save";
import { DataTable } from "../charts/small";
import { placed, together, withGaps, type Line } from "../charts/smooth";
import { seriesColour } from "../colour";
import { courseOf, useAround, useAsked } from "../context";
import { label, plain } from "../format";
import type { Columns, Given, RunRow } from "../model";
import { LogNote } from "../panel";
import { zoomed, zoomOf } from "../route";
import { Across, axisName, logOf, LogScale, metricsOf, Save, Smoothing } from "./metrics";
import { groupsOf, titleOf } from "./run_rows";

const MOST = 50;
const MOST_UNASKED = 10; // of many runs, while nobody has chosen a metric
const MOST_KEPT = 200;
const MOST_PLACES = 400;

export function RunCurves({ given, rows, group, isFew, set }: { given: Given; rows: RunRow[]; group: string; isFew: boolean; set: (changes: Given) => void }) {
  const { source, theme } = useAround();
  const [isTable, setTable] = useState(false);
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.metrics ?? {})))].sort();
  const isAsked = given.metric !== undefined && given.metric !== "";
  const metric = isAsked ? (given.metric ?? "") : usualMetric(names, rows);
  const most = isAsked || isFew || group !== "" ? MOST : MOST_UNASKED;
  const having = rows.filter((row) => row.metrics?.[metric] !== undefined);
  const asked = having.slice(0, most);
  const { x = "" } = given;
  const name = axisName(x);
  const key = `${metric} ${x} ${asked.map((row) => row.run).join("/")}`;
  const exact = metric;
  const over = useRef(new Map<string, Columns>()); // of runs that are over: asked for once
  const curveOf = async (row: RunRow): Promise<Columns | null> => {
    const place = JSON.stringify([row.run, row.ended_ns, exact, x]);
    const known = over.current.get(place);
    if (known !== undefined && row.state !== "running") return known;
    const columns = await source.panel(row.run, "metrics", { like: exact, x }).catch(() => null);
    if (over.current.size >= MOST_KEPT) over.current.clear();
    if (columns !== null && row.state !== "running") over.current.set(place, columns);
    return columns;
  };
  const { answer, isAsking } = useAsked(() => Promise.all(metric === "" ? [] : asked.map(curveOf)), key, courseOf(asked));
  const weight = Math.min(0.99, Math.max(0, Number(given.smooth) || 0));
  const lines = useMemo(() => {
    const each = (answer ?? []).map((columns, index) => {
      const found = columns === null ? undefined : metricsOf(columns).find((one) => one.name === exact);
      const line = found?.lines[0];
      return line === undefined ? null : { ...line, name: titleOf(asked[index] as RunRow), run: asked[index] as RunRow };
    }).filter((line) => line !== null);
    const found: Line[] = group === "" ? each.map(({ name, x, y }, index) => ({ name, x, y, colour: seriesColour(index) })) : means(each, group);
    return found.map(withGaps);
  }, [answer, group, theme]);
  const { isLog, isChosen } = useMemo(() => logOf(given, lines.map((line) => line.y)), [lines, given.log]);
  const inPlace = useMemo(() => placed(lines, isLog), [lines, isLog]);
  const data = useMemo(() => together(inPlace, weight), [inPlace, weight]);
  return (
    <section class="card panel is-wide" aria-label="Curves of these runs" data-panel="curves">
      <header>
        <h2>{group === "" ? "Curves" : "Mean and range of each group"}</h2>
        <div class="choices">
          <label>
            metric{" "}
            <select value={metric} onChange={(event) => set({ metric: event.currentTarget.value })}>
              {metric === "" ? <option value="">choose one</option> : !names.includes(metric) && <option value={metric}>{label(metric)}</option>}
              {names.map((name) => <option key={name} value={name}>{label(name)}</option>)}
            </select>
          </label>
          <Across given={given} set={set} />
          <Smoothing given={given} set={set} />
          <LogScale given={given} set={set} />
        </div>
      </header>
      {metric !== "" && having.length > most && <p class="note">The first {most} of {plain(having.length)} runs in the order of the table; filter or tick runs to draw others{most < MOST && `, choose a metric to draw ${MOST}`}.</p>}
      {isLog && !isChosen && <LogNote />}
      {metric === "" ? <p class="nothing">Choose a metric to draw it for {plain(Math.min(MOST, rows.length))} {rows.length > MOST ? `of ${plain(rows.length)} ` : ""}runs; tick runs to draw only those.</p> : having.length === 0 ? <p class="nothing">No run is known to have this metric.</p> : data.x.length === 0 ? answer === null || isAsking ? <div class="skeleton" /> : <p class="nothing">Of these runs none has it by {x || "step"}.</p> : (
        <Plot panel={{ x: name, y: ["value"], unit: "", scale: isLog ? "log" : "linear", marks: "", chart: "line" }} data={data} theme={theme} height={340} label={`${label(metric)} of ${asked.length} runs`} isNamed zoom={zoomOf(given, name)} onZoom={(range) => set(zoomed({}, name, range))} />
      )}
      {data.x.length > 0 && <footer><button type="button" aria-expanded={isTable} onClick={() => setTable(!isTable)}>Table</button><Save title={metric} x={name} data={data} columns={null} isLog={isLog} look={{ zoom: zoomOf(given, name) }} />{isTable && <div class="behind-table"><DataTable columns={tableOfCurves(name, data)} title={label(metric)} /></div>}</footer>}
    </section>
  );
}

/** Of the metrics that most runs have one that the program logged, else how well they learn. */
function usualMetric(names: string[], rows: RunRow[]): string {
  const has = (name: string): number => rows.filter((row) => row.metrics?.[name] !== undefined).length;
  const most = Math.max(2, ...names.map(has));
  const shared = names.filter((name) => has(name) === most);
  return shared.find((name) => !/^(steps|rounds)\//.test(name)) ?? ["rounds/accuracy", "rounds/loss", "steps/loss"].find((name) => shared.includes(name)) ?? "";
}

/** For each group the mean of its runs at every place that one of them has, or at 400 of them, and the range. */
function means(each: (Line & { run: RunRow })[], group: string): Line[] {
  const members = groupsOf(each.map((line) => line.run), group);
  return [...members].map(([name, rows], index) => {
    const lines = each.filter((line) => rows.includes(line.run));
    const told = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const [first, last] = [told[0] ?? 0, told.at(-1) ?? 0];
    const x = told.length <= MOST_PLACES ? told : Array.from({ length: MOST_PLACES }, (_, place) => first + ((last - first) * place) / (MOST_PLACES - 1));
    const at = lines.map((line) => sampledAt(line, x));
    const rest = (pick: (values: number[]) => number): (number | null)[] => x.map((_, place) => {
      const values = at.map((line) => line[place]).filter((value): value is number => value != null);
      return values.length === 0 ? null : pick(values);
    });
    return {
      name: `${name} (${lines.length})`, x, colour: seriesColour(index), y: rest((values) => values.reduce((sum, value) => sum + value, 0) / values.length),
      low: rest((values) => Math.min(...values)), high: rest((values) => Math.max(...values)),
    };
  });
}

/** A line's values at other places: between two values on the way from one to the other; nothing outside of it. */
function sampledAt(line: Line, places: number[]): (number | null)[] {
  let row = 0;
  return places.map((place) => {
    while (row + 1 < line.x.length && (line.x[row + 1] as number) <= place) row += 1;
    const [from, value, to, next] = [line.x[row] ?? Number.NaN, line.y[row] ?? Number.NaN, line.x[row + 1] ?? Number.NaN, line.y[row + 1] ?? Number.NaN];
    const found = place === from ? value : place < from ? Number.NaN : value + ((next - value) * (place - from)) / (to - from);
    return Number.isFinite(found) ? found : null;
  });
}
