// Many runs at once: each a line across its hyperparameters and results, or a dot between two of them.
import { useRef, useState } from "preact/hooks";
import { csvOf, savePng, saveText } from "../charts/save";
import { shading, themeColour, type Shading } from "../colour";
import { counted, label, plain, short } from "../format";
import { number, type Given, type RunRow } from "../model";
import { Segments } from "../panel";
import { go } from "../route";
import { between, columnsOf, columnTitle, tableOfRuns, titleOf, valueOf, varying } from "./run_rows";

const [WIDE, HIGH, EDGE] = [960, 320, 46];
const NOT_SET = HIGH - 8; // how far down a run goes past an axis of which it has no value
const MOST_AXES = 8;
const MOST_TICKS = 7; // so many values are named each

interface Axis {
  key: string;
  isLog?: boolean;
  place: (row: RunRow) => number | null;
  /** The number at a place between 0 and 1; null where the values are texts, or all the same. */
  at: ((part: number) => number) | null;
  ticks: [number, string][];
}

export function Sweep({ rows, given, set }: { rows: RunRow[]; given: Given; set: (changes: Given) => void }) {
  const known = columnsOf(rows).filter((key) => rows.some((row) => valueOf(row, key) !== null));
  const settings = varying(rows).slice(0, MOST_AXES - 1);
  const result = given.result ?? usualResult(known, rows);
  const kind = given.sweep === "scatter" ? "scatter" : "parallel";
  const across = given.across ?? settings[0] ?? "steps";
  const keys = kind === "scatter" ? [across, result] : [...settings, result];
  const axes = keys.map((key) => axisOf(key, rows));
  const byVerdict = new Set(rows.map((row) => row.health?.colour)).size > 1;
  const results = rows.map((row) => number(valueOf(row, result))).filter((value): value is number => value !== null && Number.isFinite(value));
  const isByResult = kind === "parallel" && results.length > 0 && (given.colour ?? (byVerdict ? "verdict" : "result")) === "result";
  const shades = isByResult ? shading(results, axes.at(-1)?.isLog === true ? "log" : "linear") : null;
  const colourOf = shades === null ? byVerdictOf() : byResultOf(result, shades);
  const drawnRows = isByResult ? rows.filter((row) => number(valueOf(row, result)) !== null) : rows;
  const keep = (axis: Axis, low: number, high: number): void => set({ q: between(given.q ?? "", axis.key, low, high) });
  const frame = useRef<HTMLElement>(null);
  const drawn = (): string => alone(frame.current?.querySelector("svg.sweep") as SVGElement);
  const isDrawn = kind === "scatter" || settings.length > 0;
  return (
    <section class="card panel is-wide" aria-label="Sweep" data-panel="sweep" ref={frame}>
      <header>
        <h2>{kind === "scatter" ? "Runs between two quantities" : "Runs across what differs"}</h2>
        <div class="choices">
          <Segments title="Drawing" names={["parallel", "scatter"]} chosen={kind} choose={(name) => set({ sweep: name === "parallel" ? "" : name })} />
          {kind === "parallel" && results.length > 0 && (
            <span class="named-choice">
              <span aria-hidden="true">colour</span> <Segments title="Colour by" names={["verdict", "result"]} chosen={isByResult ? "result" : "verdict"} choose={(name) => set({ colour: name })} />
            </span>
          )}
          {kind === "scatter" && <Choice title="x" value={across} keys={known} choose={(key) => set({ across: key })} />}
          <Choice title={kind === "scatter" ? "y" : "result"} value={result} keys={known} choose={(key) => set({ result: key })} />
        </div>
      </header>
      {kind === "parallel" && settings.length === 0 ? (
        <p class="nothing">These runs have the same hyperparameters.</p>
      ) : kind === "parallel" ? (
        <>
        <p class="note">
          Drag along an axis to keep the runs in that range, double-click it to keep all; the filter above says the same in words.
          {drawnRows.length < rows.length && ` Not drawn: ${counted(rows.length - drawnRows.length, "run")} without ${label(columnTitle(result))}.`}
        </p>
                <div class="sweep-frame" tabIndex={0} role="region" aria-label="Runs across what differs"><Parallel axes={axes} rows={drawnRows} colourOf={colourOf} keep={keep} /></div>
        {shades !== null && <Key title={columnTitle(result)} name={result} shades={shades} />}
        </>
      ) : (
        <div class="sweep-frame" tabIndex={0} role="region" aria-label="Runs between two quantities"><Scatter x={axes[0] as Axis} y={axes[1] as Axis} rows={rows} colourOf={colourOf} /></div>
      )}
      {isDrawn && (
        <footer>
          <span class="save" role="group" aria-label="Save the drawing">
            <button type="button" onClick={() => void savePng(drawn(), "sweep.png")}>PNG</button>
            <button type="button" onClick={() => saveText(drawn(), "sweep.svg", "image/svg+xml")}>SVG</button>
            <button type="button" onClick={() => saveText(csvOf(tableOfRuns(rows, keys)), "sweep.csv", "text/csv")}>CSV</button>
          </span>
        </footer>
      )}
    </section>
  );
}

/** A drawing of the page as a file of its own: what the page's styles say stands in the elements. */
function alone(drawn: SVGElement): string {
  const copy = drawn.cloneNode(true) as SVGElement;
  const [ink, muted] = [themeColour("ink"), themeColour("muted")];
  const set = (elements: Iterable<Element>, given: Record<string, string>): void => {
    for (const one of elements) for (const [name, value] of Object.entries(given)) one.setAttribute(name, value);
  };
  set([copy], { xmlns: "http://www.w3.org/2000/svg", width: String(WIDE), height: String(HIGH), "font-family": "sans-serif", "font-size": "11", fill: muted });
  set(copy.querySelectorAll("path"), { fill: "none", "stroke-width": "1.2", opacity: "0.5" });
  set(copy.querySelectorAll("circle"), { opacity: "0.75" });
  set(copy.querySelectorAll("line"), { stroke: muted });
  set(copy.querySelectorAll(".axis-name"), { "font-weight": "600", fill: ink });
  for (const one of copy.querySelectorAll(".handle, .kept")) one.remove();
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  set([ground], { width: String(WIDE), height: String(HIGH), fill: themeColour("card") });
  copy.prepend(ground);
  return new XMLSerializer().serializeToString(copy);
}

/** What the runs came to: accuracy or loss, else the first metric in which they differ. */
function usualResult(known: string[], rows: RunRow[]): string {
  const own = known.filter((key) => key.startsWith("metric:last:"));
  const differs = (key: string): boolean => new Set(rows.map((row) => valueOf(row, key))).size > 1;
  return ["accuracy", "loss", ...own].find((key) => known.includes(key) && differs(key)) ?? "steps";
}

function Choice({ title, value, keys, choose }: { title: string; value: string; keys: string[]; choose: (key: string) => void }) {
  return (
    <label>
      {title}{" "}
      <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
        {keys.map((key) => <option key={key} value={key}>{label(columnTitle(key))}</option>)}
      </select>
    </label>
  );
}

/** An axis from 0 to 1: of numbers between their ends, of anything else by its distinct texts. */
function axisOf(key: string, rows: RunRow[]): Axis {
  const values = rows.map((row) => valueOf(row, key)).filter((value) => value !== null && value !== "");
  const numbers = values.map(number).filter((value): value is number => value !== null && Number.isFinite(value));
  if (values.every((value) => number(value) !== null) && numbers.length > 0) {
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const isLog = low > 0 && (high / low > 50 || isDoubling(numbers));
    const bend = isLog ? Math.log : (value: number): number => value;
    const part = (value: number): number => (high === low ? 0.5 : (bend(value) - bend(low)) / (bend(high) - bend(low)));
    const middle = isLog ? Math.sqrt(low * high) : (low + high) / 2;
    const distinct = [...new Set(numbers)].sort((a, b) => a - b);
    const named = distinct.length <= MOST_TICKS && distinct.every((value, place) => place === 0 || part(value) - part(distinct[place - 1] as number) > 0.05);
    const ticks = (named ? distinct : [low, middle, high]).map((value): [number, string] => [part(value), short(named ? value : Number(value.toPrecision(3)), key)]);
    const value = (place: number): number => (isLog ? low * (high / low) ** place : low + (high - low) * place);
    return { key, isLog, at: high === low ? null : value, ticks: ticks.slice(0, high === low ? 1 : undefined), place: (row) => {
      const value = number(valueOf(row, key));
      return value === null || !Number.isFinite(value) ? null : part(value);
    } };
  }
  const texts = [...new Set(values.map(String))].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).slice(0, 30);
  const at = (text: string): number | null => (texts.indexOf(text) < 0 ? null : texts.length === 1 ? 0.5 : texts.indexOf(text) / (texts.length - 1));
  return { key, at: null, ticks: texts.slice(0, 12).map((text) => [at(text) ?? 0, label(text).slice(0, 18)]), place: (row) => {
    const value = valueOf(row, key);
    return value === null || value === "" ? null : at(String(value));
  } };
}

/** Whether the values grow by a factor, as batch sizes and widths do: 16, 32, 64. */
function isDoubling(numbers: number[]): boolean {
  const values = [...new Set(numbers)].sort((a, b) => a - b);
  return values.length > 2 && values.slice(1).every((value, place) => value / (values[place] as number) >= 1.9);
}

/** The colour of a run by its verdict; the colours are asked for once, as a page of styles is slow to ask. */
function byVerdictOf(): (row: RunRow) => string {
  const [red, amber, other] = [themeColour("error"), themeColour("warning"), themeColour("accent")];
  return (row) => (row.health?.colour === "red" ? red : row.health?.colour === "amber" ? amber : other);
}

/** The colour of a run by what it came to; one without a result is grey. */
function byResultOf(result: string, shades: Shading): (row: RunRow) => string {
  const none = themeColour("muted");
  return (row) => {
    const value = number(valueOf(row, result));
    return value === null ? none : shades.colour(value);
  };
}

/** Which colour is which result. */
function Key({ title, name, shades }: { title: string; name: string; shades: Shading }) {
  return (
    <p class="sweep-key">
      <span>{label(title)}</span>
      <span>{short(shades.ticks[0] ?? 0, name)}</span>
      <i style={{ background: `linear-gradient(90deg, ${shades.stops.join(", ")})` }} />
      <span>{short(shades.ticks.at(-1) ?? 1, name)}</span>
    </p>
  );
}

const open = (row: RunRow): void => go({ run: row.run, page: "overview", given: {} });

interface Crossing {
  axes: Axis[];
  rows: RunRow[];
  colourOf: (row: RunRow) => string;
  /** Keep the runs between two numbers of an axis; NaN and NaN is all of them. */
  keep: (axis: Axis, low: number, high: number) => void;
}

function Parallel({ axes, rows, colourOf, keep }: Crossing) {
  const [dragged, setDragged] = useState<{ index: number; from: number; to: number } | null>(null);
  const across = (index: number): number => EDGE + 20 + (index * (WIDE - 2 * EDGE - 40)) / Math.max(1, axes.length - 1);
  const up = (part: number): number => HIGH - 30 - part * (HIGH - 80);
  return (
    <svg class="sweep" viewBox={`0 0 ${WIDE} ${HIGH}`} role="img" aria-label={`${plain(rows.length)} runs across ${axes.map((axis) => columnTitle(axis.key)).join(", ")}; the table above has the numbers`}>
      {rows.slice(0, 1500).map((row) => {
        let path = "";
        axes.forEach((axis, index) => {
          const part = axis.place(row);
          if (part === null && index === axes.length - 1) return; // nothing came of it
          path += `${path === "" ? "M" : "L"}${across(index).toFixed(1)} ${(part === null ? NOT_SET : up(part)).toFixed(1)}`;
        });
        return <path key={row.run} d={path} stroke={colourOf(row)} onClick={() => open(row)}><title>{label(titleOf(row))}</title></path>;
      })}
      {axes.map((axis, index) => (
        <g key={axis.key} data-axis={columnTitle(axis.key)}>
          <line x1={across(index)} x2={across(index)} y1={up(0)} y2={up(1)} />
          <text x={across(index)} y={26} text-anchor="middle" class="axis-name">{label(columnTitle(axis.key)).slice(0, 24)}</text>
          {axis.ticks.map(([part, text]) => <text key={text} x={across(index) + 6} y={up(part) + 4}>{text}</text>)}
          {index < axes.length - 1 && rows.some((row) => axis.place(row) === null) && <text x={across(index) + 6} y={NOT_SET + 4} class="is-unset">not set</text>}
          {dragged?.index === index && <rect class="kept" x={across(index) - 8} width={16} y={Math.min(up(dragged.from), up(dragged.to))} height={Math.abs(up(dragged.from) - up(dragged.to))} />}
          {axis.at !== null && (
            <rect
              class="handle" x={across(index) - 12} width={24} y={up(1) - 6} height={up(0) - up(1) + 12}
              onPointerDown={(event) => { event.currentTarget.setPointerCapture(event.pointerId); setDragged({ index, from: partAt(event), to: partAt(event) }); }}
              onPointerMove={(event) => dragged !== null && setDragged({ ...dragged, to: partAt(event) })}
              onPointerCancel={() => setDragged(null)}
              onPointerUp={() => {
                if (dragged !== null && Math.abs(dragged.from - dragged.to) > 0.02) keep(axis, at(axis, Math.min(dragged.from, dragged.to)), at(axis, Math.max(dragged.from, dragged.to)));
                setDragged(null);
              }}
              onDblClick={() => keep(axis, Number.NaN, Number.NaN)}
            />
          )}
        </g>
      ))}
    </svg>
  );
}

/** The number at a place of an axis; beyond its ends there is no limit. */
function at(axis: Axis, part: number): number {
  if (part <= 0) return -Infinity;
  return part >= 1 ? Infinity : (axis.at?.(part) ?? Number.NaN);
}

/** How far up an axis the pointer is, from 0 to 1. */
function partAt(event: PointerEvent): number {
  const box = (event.currentTarget as SVGElement).getBoundingClientRect();
  const margin = (6 / (HIGH - 80 + 12)) * box.height;
  return Math.max(0, Math.min(1, 1 - (event.clientY - box.top - margin) / (box.height - 2 * margin)));
}

function Scatter({ x, y, rows, colourOf }: { x: Axis; y: Axis; rows: RunRow[]; colourOf: (row: RunRow) => string }) {
  const across = (part: number): number => EDGE + 30 + part * (WIDE - EDGE - 60);
  const up = (part: number): number => HIGH - 44 - part * (HIGH - 70);
  return (
    <svg class="sweep" viewBox={`0 0 ${WIDE} ${HIGH}`} role="img" aria-label={`${plain(rows.length)} runs by ${columnTitle(x.key)} and ${columnTitle(y.key)}; the table above has the numbers`}>
      <line x1={across(0)} x2={across(1)} y1={up(0) + 8} y2={up(0) + 8} />
      <line x1={across(0) - 8} x2={across(0) - 8} y1={up(0)} y2={up(1)} />
      {x.ticks.map(([part, text]) => <text key={text} x={across(part)} y={HIGH - 20} text-anchor="middle">{text}</text>)}
      {y.ticks.map(([part, text]) => <text key={text} x={across(0) - 14} y={up(part) + 4} text-anchor="end">{text}</text>)}
      <text x={across(1)} y={HIGH - 4} text-anchor="end" class="axis-name">{label(columnTitle(x.key))}</text>
      <text x={4} y={16} class="axis-name">{label(columnTitle(y.key))}</text>
      {rows.slice(0, 3000).map((row) => {
        const [left, top] = [x.place(row), y.place(row)];
        return left === null || top === null ? null : <circle key={row.run} cx={across(left)} cy={up(top)} r={4.5} fill={colourOf(row)} onClick={() => open(row)}><title>{label(titleOf(row))}</title></circle>;
      })}
    </svg>
  );
}
