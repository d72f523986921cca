// Lines and stacks over a dense x axis, drawn by uPlot.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { BROKEN, faded, themeColour } from "../colour";
import { colourOf, drawRaw, withRaw } from "./behind";
import { clock, heading, label as nameOf, measured, moment, plain, tickLabels } from "../format";
import type { Finding, Panel } from "../model";
import { around, hasValue, isolated, type Curve, type Curves, type Range } from "./series";

export type { Curve, Curves, Range } from "./series";
const MANY_CURVES = 12; // from here on only the curve beneath the cursor has a point
const MOST_NAMED = 8;

interface Drawn {
  panel: Pick<Panel, "x" | "y" | "unit" | "scale" | "marks" | "chart">;
  data: Curves;
  findings?: Finding[];
  height?: number;
  theme: string;
  onPick?: ((x: number) => void) | undefined;
  label: string;
  /** Whether a single curve is named, too. */
  isNamed?: boolean;
  /** What is shown of the x axis; null is all. Without `onZoom` the drawing remembers it by itself. */
  zoom?: Range | null;
  onZoom?: (range: Range | null) => void;
  /** Limits of the y axis; null where the values decide. */
  limits?: [number | null, number | null];
}

export function Plot({ panel, data, findings = [], height = 230, theme, onPick, label, isNamed = false, zoom, onZoom, limits = [null, null] }: Drawn) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [own, setOwn] = useState<Range | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const shownRange = onZoom === undefined ? own : (zoom ?? null);
  const latest = useRef<Latest>({ findings, data, onPick, zoom: shownRange, onZoom: onZoom ?? setOwn, limits });
  latest.current = { findings, data, onPick, zoom: shownRange, onZoom: onZoom ?? setOwn, limits };
  const isStack = panel.chart === "stack";
  const shape = [theme, panel.x, isStack, panel.scale, JSON.stringify(solid(data).map((one) => [one.name, one.low !== undefined && one.high !== undefined, one.isDots]))].join();

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const options = optionsOf(panel, latest, element.clientWidth, height, isStack);
    const made = new uPlot(options, tableOf(latest.current.data, isStack, panel.x), element);
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    watcher.observe(element);
    made.over.addEventListener("dblclick", () => latest.current.onZoom(null));
    const clicked = (): void => {
      const picked = made.cursor.idx;
      if (picked !== null && picked !== undefined && hasValue(latest.current.data, picked)) latest.current.onPick?.(latest.current.data.x[picked] as number);
    };
    made.over.addEventListener("click", clicked);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, height]);

  useEffect(() => {
    plot.current?.setData(tableOf(data, isStack, panel.x)); // scales keep to what is zoomed
  }, [data, findings, JSON.stringify([shownRange, limits])]);

  const toggle = (name: string): void => {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    setHidden(next);
    plot.current?.series.forEach((one, index) => index > 0 && plot.current?.setSeries(index, { show: !next.has(String(one.label)) }));
  };

  /** With the keys: arrows move the cursor, + and - zoom around it, 0 shows all, Enter picks. */
  const keyed = (event: KeyboardEvent): void => {
    const made = plot.current;
    if (made === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = data.x.length - 1;
    const at = Math.max(0, Math.min(last, made.cursor.idx ?? (last >> 1)));
    const unit = panel.x.endsWith("_ns") ? 1e9 : 1;
    const zoomBy = (times: number): void => {
      const [low, high] = [made.scales.x?.min ?? 0, made.scales.x?.max ?? 1];
      const [first, final] = [(data.x[0] ?? 0) / unit, (data.x[last] ?? 1) / unit];
      const middle = (data.x[at] ?? 0) / unit;
      const half = ((high - low) / 2) * times;
      const range: Range = [Math.max(first, middle - half), Math.min(final, middle + half)];
      latest.current.onZoom(range[0] <= first && range[1] >= final ? null : range);
    };
    const moves: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -last, End: last };
    const move = moves[event.key];
    if (move !== undefined) {
      const next = Math.max(0, Math.min(last, made.cursor.idx == null ? at : at + move));
      made.setCursor({ left: made.valToPos((data.x[next] ?? 0) / unit, "x"), top: made.over.clientHeight / 3 });
    } else if (event.key === "+" || event.key === "=") zoomBy(0.5);
    else if (event.key === "-") zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") latest.current.onZoom(null);
    else if (event.key === "Enter" && onPick !== undefined) onPick(data.x[at] as number);
    else return;
    event.preventDefault();
  };

  const names = data.curves.map((one, index) => ({ name: one.name, colour: colourOf(one, index, isStack), isRaw: one.isRaw })).filter((one) => !one.isRaw);
  const isBare = !data.curves.some((one) => one.values.some((value) => value != null));
  const isNamedBroken = (data.brokenIn?.length ?? 0) > 0;
  return (
    <div class="plot-frame">
      {data.broken.length > 0 && (
        <div class="legend-steps">
          <span>
            <i style={{ background: BROKEN }} />
            NaN or infinite {isNamedBroken ? "in" : isBare ? `at every ${heading(panel.x)}` : data.isGrouped ? "" : `at ${plain(data.broken.length)} of ${plain(told(data))}`}
            {isNamedBroken && ` ${namesOf(data.brokenIn ?? [], nameOf)}`}
          </span>
        </div>
      )}
      {(names.length > 1 || (isNamed && names.length === 1)) && (
        <div class="legend-steps">
          {names.slice(0, 16).map(({ name, colour }) => (
            <button type="button" key={name} aria-pressed={!hidden.has(name)} title="show or hide" onClick={() => toggle(name)} disabled={isStack}>
              <i style={{ background: colour }} />
              {nameOf(name)}
            </button>
          ))}
          {names.length > 16 && <span class="muted">and {names.length - 16} more</span>}
        </div>
      )}
      <div class={`plot${onPick ? " can-pick" : ""}`} ref={place} role="img" tabIndex={0} aria-label={`${label}. Arrow keys move the cursor, + and - zoom, 0 shows all; Table has the numbers.`} onKeyDown={keyed} />
      {shownRange !== null && (
        <button type="button" class="unzoom" onClick={() => latest.current.onZoom(null)}>
          Show all
        </button>
      )}
    </div>
  );
}

/** Some names, and how many more there are. */
function namesOf(names: string[], nameOf: (name: string) => string): string {
  const rest = names.length - MOST_NAMED;
  return names.slice(0, MOST_NAMED).map(nameOf).join(", ") + (rest > 0 ? ` and ${rest} more` : "");
}

/** At how many places something is known; those between, which only interrupt a line, do not count. */
function told(data: Curves): number {
  const broken = new Set(data.broken);
  return data.x.filter((place, index) => broken.has(place) || data.curves.some((one) => one.values[index] != null)).length;
}

interface Latest {
  findings: Finding[];
  data: Curves;
  onPick: ((x: number) => void) | undefined;
  zoom: Range | null;
  onZoom: (range: Range | null) => void;
  limits: [number | null, number | null];
}

/** The curves that are series of the drawing; raw ones are drawn behind them. */
function solid(data: Curves): Curve[] {
  return data.curves.filter((one) => !one.isRaw);
}

function tableOf(data: Curves, isStack: boolean, x: string): uPlot.AlignedData {
  const places = x.endsWith("_ns") ? data.x.map((value) => value / 1e9) : data.x;
  if (!isStack) return [places, ...solid(data).flatMap((one) => (one.low && one.high ? [one.values, one.high, one.low] : [one.values]))];
  const sums: number[][] = [];
  data.curves.forEach((one, index) => {
    const below = sums[index - 1];
    sums.push(one.values.map((value, row) => (value ?? 0) + (below?.[row] ?? 0)));
  });
  return [places, ...sums.reverse()];
}

function optionsOf(
  panel: Drawn["panel"],
  latest: { current: Latest },
  width: number,
  height: number,
  isStack: boolean,
): uPlot.Options {
  const data = latest.current.data;
  const grid = themeColour("grid");
  const ink = themeColour("muted");
  const font = `11px ${themeColour("font")}`;
  const unitName = panel.y[0] ?? "";
  const series: uPlot.Series[] = [{ label: heading(panel.x) }];
  const bands: uPlot.Band[] = [];
  const few = data.x.length <= 80;
  if (isStack) {
    [...data.curves].reverse().forEach((one, order) => {
      const index = data.curves.length - 1 - order;
      const colour = colourOf(one, index, true);
      series.push({
        label: one.name,
        stroke: colour,
        width: few ? 0 : 1,
        fill: colour, // opaque: what stands behind would mix into it, and no colour be that of its name
        paths: few ? (uPlot.paths.bars?.({ size: [0.82, 40], radius: 0.12 }) as uPlot.Series.PathBuilder) : (uPlot.paths.stepped?.({ align: 1 }) as uPlot.Series.PathBuilder),
        points: { show: false },
      });
    });
  } else {
    solid(data).forEach((one, index) => {
      const colour = colourOf(one, index, false);
      series.push({
        label: one.name,
        stroke: colour,
        width: solid(data).length > MANY_CURVES ? 1 : one.isFaint ? 1.5 : 2,
        ...(one.isFaint ? { dash: [5, 4] } : {}),
        ...(one.isDots ? { paths: () => null } : {}),
        points: { show: one.isDots === true || (data.x.length <= 60 && solid(data).length <= MANY_CURVES), size: 5, fill: colour, filter: (plot, row, isShown) => (isShown ? null : isolated(plot.data[row] ?? [])) },
      });
      if (one.low && one.high) {
        const hidden = { width: 0, points: { show: false } };
        series.push({ ...hidden, label: "highest" }, { ...hidden, label: "lowest" });
        bands.push({ series: [series.length - 2, series.length - 1], fill: faded(one.isFaint ? "#808890" : colour, 0.16) });
      }
    });
  }
  const axis = { stroke: ink, font, labelFont: font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 } };
  return {
    width,
    height,
    series,
    bands,
    padding: [panel.marks === "" ? 12 : 22, panel.x.endsWith("_ns") ? 26 : 22, 0, 0],
    cursor: {
      points: { size: 7, one: solid(data).length > MANY_CURVES }, drag: { x: true, y: false, setScale: false }, focus: { prox: 24 },
      sync: { key: `stethos ${panel.x}`, setSeries: false },
    },
    legend: { show: false },
    plugins: [tip(panel, latest, isStack)],
    scales: {
      x: {
        time: panel.x.endsWith("_ns"),
        range: (_, low, high) => latest.current.zoom ?? xRange(low, high, latest.current.data.reach, isStack && few),
      },
      y: { ...(panel.scale === "log" ? { distr: 3 as const } : {}), range: (_, low, high) => yRange(...withRaw(low, high, latest.current.data, panel.x, latest.current.zoom), panel.scale, isStack, latest.current.limits) },
    },
    axes: [
      { ...axis, size: 28, ...(panel.x.endsWith("_ns") ? { values: (_, ticks) => ticks.map(clock), space: 70 } : panel.x === "time" ? { values: (_, ticks) => ticks.map((tick) => `${plain(tick)} s`) } : { values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? plain(tick) : "")), incrs: WHOLE, space: (_, __, ___, most) => Math.max(34, plain(Math.round(most)).length * 7 + 8) }) },
      { ...axis, size: 60, ...(panel.scale === "log" ? { grid: { ...axis.grid, filter: decades } } : {}), values: (_, ticks) => tickLabels(fewer(ticks, panel.scale), unitName, panel.unit) },
    ],
    hooks: {
      setSelect: [
        (plot) => {
          const { left, width: wide } = plot.select;
          if (wide > 3) latest.current.onZoom([plot.posToVal(left, "x"), plot.posToVal(left + wide, "x")]);
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        },
      ],
      drawAxes: [
        (plot) => {
          mark(plot, latest.current.findings, panel.marks, true);
          drawRaw(plot, latest.current.data, panel.scale === "log");
        },
      ],
      draw: [
        (plot) => {
          markBroken(plot, latest.current.data.broken, panel.x);
          mark(plot, latest.current.findings, panel.marks, false);
        },
      ],
    },
  };
}

/** The x axis: all places, those of bars with half a bar at each end. */
function xRange(low: number, high: number, reach = high, isBars = false): Range {
  if (isBars) return [low - 0.6, high + 0.6];
  const end = Math.max(high, reach);
  return low === end ? [low - 1, end + 1] : [low, end];
}

/** The y axis: what was asked for, else around the values; where there are none, from 0 to 1.
 * A logarithmic one has no place for 0 and below: there it ends four powers of ten below the highest value. */
function yRange(low: number | null, high: number | null, scale: Panel["scale"], isStack: boolean, limits: [number | null, number | null]): Range {
  const isLog = scale === "log";
  const [least, most] = limits.map((one) => (isLog && one !== null && one <= 0 ? null : one));
  let found: uPlot.Range.MinMax = isLog ? [0.1, 1] : [0, 1];
  if (low !== null && high !== null && (!isLog || high > 0)) found = isLog ? uPlot.rangeLog(low > 0 ? low : high / 1e4, high, 10, false) : isStack ? [0, high * 1.05 || 1] : around(low, high);
  const [from, to] = [least ?? found[0] ?? 0, most ?? found[1] ?? 1];
  return from < to ? [from, to] : [from, from + (Math.abs(from) || 1)];
}

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7, 1e8, 1e9];

/** Of the many lines of a logarithmic scale only those of powers of ten, unless there are few. */
function decades(_: uPlot, splits: number[]): (number | null)[] {
  if (splits.length < 24) return splits;
  return splits.map((value) => (Math.abs(Math.log10(value) % 1) < 1e-9 ? value : null));
}

/** Of the labels of a logarithmic scale over many powers of ten only some. */
function fewer(ticks: (number | null)[], scale: Panel["scale"]): (number | null)[] {
  const places = ticks.map((tick) => (tick === null ? Number.NaN : Math.log10(tick)));
  const whole = places.filter((place) => Math.abs(place - Math.round(place)) < 1e-9).map(Math.round);
  const every = Math.ceil((Math.max(...whole) - Math.min(...whole)) / 8);
  if (scale !== "log" || whole.length < 8 || every < 2) return ticks;
  return ticks.map((tick, index) => (Math.round(places[index] ?? 0) % every === 0 ? tick : null));
}

function xText(name: string, value: number | null): string {
  if (value === null || value === undefined) return "–";
  return name.endsWith("_ns") ? moment(value * 1e9) : plain(value);
}

function shown(value: number | null | undefined, name: string, unit: string): string {
  return value === null || value === undefined ? "–" : measured(value, name, unit);
}

/** What the cursor is over, in a small box beside it. */
function tip(panel: Drawn["panel"], latest: { current: { data: Curves } }, isStack: boolean): uPlot.Plugin {
  const box = document.createElement("div");
  box.className = "tip";
  const line = (text: string, value: string, colour: string): HTMLElement => {
    const row = document.createElement("div");
    const mark = document.createElement("i");
    mark.style.background = colour;
    const name = document.createElement("span");
    name.textContent = text;
    const number = document.createElement("b");
    number.textContent = value;
    row.append(mark, name, number);
    return row;
  };
  return {
    hooks: {
      init: (plot) => plot.over.append(box),
      setCursor: (plot) => {
        const { idx, left = -1 } = plot.cursor;
        const data = latest.current.data;
        if (idx === null || idx === undefined || left < 0 || !hasValue(data, idx)) {
          box.style.display = "none";
          return;
        }
        const title = document.createElement("em");
        title.textContent = panel.x.endsWith("_ns") ? moment(data.x[idx] ?? 0) : `${heading(panel.x)} ${xText(panel.x, data.x[idx] ?? null)}`;
        const rows = data.curves
          .map((one, index) => ({ one, index }))
          .filter(({ one }) => !one.isRaw && one.values[idx] !== null && one.values[idx] !== undefined)
          .slice(0, 12)
          .map(({ one, index }) => line(one.name, shown(one.values[idx], panel.y[0] ?? "", panel.unit), colourOf(one, index, isStack)));
        box.replaceChildren(title, ...rows);
        box.style.display = "block";
        const isRight = left > plot.over.clientWidth / 2;
        box.style.left = isRight ? "" : `${left + 14}px`;
        box.style.right = isRight ? `${plot.over.clientWidth - left + 14}px` : "";
      },
    },
  };
}

/** A tick at the foot of the drawing wherever a value is NaN or infinite. */
function markBroken(plot: uPlot, broken: number[], x: string): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.fillStyle = BROKEN;
  for (const place of broken) {
    const at = plot.valToPos(x.endsWith("_ns") ? place / 1e9 : place, "x", true);
    if (at >= bbox.left - 1 && at <= bbox.left + bbox.width + 1) ctx.fillRect(at - 1.5 * ratio, bbox.top + bbox.height - 9 * ratio, 3 * ratio, 9 * ratio);
  }
  ctx.restore();
}

/** Findings on the time line: from where each began, a flag and a shade. */
function mark(plot: uPlot, findings: Finding[], unit: string, isBehind: boolean): void {
  if (unit === "") return;
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  const flags: Range[][] = []; // of each row, from where to where flags stand in it
  for (const one of findings) {
    if (one.unit !== unit || one.first === null || one.severity === "info") continue;
    const from = Math.max(bbox.left, plot.valToPos(one.first, "x", true));
    const to = one.last === null ? bbox.left + bbox.width : Math.min(bbox.left + bbox.width, plot.valToPos(one.last, "x", true));
    if (from > bbox.left + bbox.width || to < bbox.left) continue;
    const colour = themeColour(one.open ? one.severity : "warning");
    if (isBehind) {
      ctx.fillStyle = faded(colour, 0.08);
      ctx.fillRect(from, bbox.top, Math.max(0, to - from), bbox.height);
      continue;
    }
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(from, bbox.top);
    ctx.lineTo(from, bbox.top + bbox.height);
    ctx.stroke();
    const words = `${one.kind}${one.clients.length > 0 ? ` · ${one.clients.slice(0, 2).join(", ")}` : ""}`;
    ctx.font = `600 ${10.5 * ratio}px ${themeColour("font")}`;
    const wide = ctx.measureText(words).width + 10 * ratio;
    const left = Math.min(from, bbox.left + bbox.width - wide);
    const isFree = (taken: Range[]): boolean => taken.every(([first, last]) => left + wide <= first || left >= last);
    const found = flags.findIndex(isFree);
    const row = found < 0 ? flags.length : found;
    if (row > 2) continue;
    (flags[row] ??= []).push([left, left + wide]);
    const top = bbox.top + (18 * row - 17) * ratio; // the first row above the drawing, of which it hides nothing
    ctx.fillStyle = colour;
    ctx.fillRect(left, top, wide, 16 * ratio);
    ctx.fillStyle = themeColour("on-severity");
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.fillText(words, left + 5 * ratio, top + 8.5 * ratio);
  }
  ctx.restore();
}
