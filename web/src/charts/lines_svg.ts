// Lines and stacks as a picture of their own: what the page shows of them, with a legend, as SVG.
import { BROKEN, themeColour } from "../colour";
import { clock, heading, label, plain, tickLabels } from "../format";
import type { Panel } from "../model";
import { colourOf } from "./behind";
import { escape } from "./save";
import { around, isolated, type Curve, type Curves, type Range } from "./series";

const [WIDE, HIGH, LEFT, RIGHT, TOP, FOOT] = [960, 420, 76, 20, 46, 44];
const MOST_NAMED = 24;
const FEW = 80; // a stack of at most as many places is drawn as bars

export interface Look {
  /** What is shown of the x axis; null is all. */
  zoom?: Range | null;
  /** Limits of the y axis; null where the values decide. */
  limits?: [number | null, number | null];
}

interface Frame {
  across: (x: number) => number;
  up: (y: number) => number;
  isLog: boolean;
}

export function svgOf(title: string, panel: Pick<Panel, "x" | "y" | "unit" | "scale" | "chart">, data: Curves, look: Look = {}): string {
  const isLog = panel.scale === "log";
  const isStack = panel.chart === "stack";
  const legend = isStack || data.curves.filter((one) => !one.isRaw).length > 1 ? legendOf(data.curves, isStack) : { rows: 0, body: "" };
  const top = TOP + legend.rows * 18;
  const unit = panel.x.endsWith("_ns") ? 1e9 : 1; // zooms are in seconds
  const zoom = look.zoom == null ? null : ([look.zoom[0] * unit, look.zoom[1] * unit] satisfies Range);
  const [first, last] = zoom ?? extent([...data.x, ...(data.reach === undefined ? [] : [data.reach])]);
  const [low, high] = heightOf(data, [first, last], isLog, isStack, look.limits ?? [null, null]);
  const bend = isLog ? Math.log10 : (value: number): number => value;
  const frame: Frame = {
    isLog,
    across: (x) => LEFT + ((x - first) / (last - first)) * (WIDE - LEFT - RIGHT),
    up: (y) => HIGH - FOOT - ((bend(y) - bend(low)) / (bend(high) - bend(low))) * (HIGH - FOOT - top),
  };
  const drawn = isStack ? stackOf(data, frame) : data.curves.map((one, index) => curveOf(one, index, data.x, frame)).join("");
  const broken = data.broken.filter((x) => x >= first && x <= last).map((x) => `<rect x="${(frame.across(x) - 1.5).toFixed(1)}" y="${HIGH - FOOT - 9}" width="3" height="9" fill="${BROKEN}"><title>NaN or infinite</title></rect>`);
  const [ink, muted] = [themeColour("ink") || "#222", themeColour("muted") || "#666"];
  const axes = `<g fill="${muted}">${yAxis([low, high], panel, frame)}${xAxis([first, last], panel.x, frame)}</g>`;
  const clip = `<clipPath id="inside"><rect x="${LEFT}" y="${top - 3}" width="${WIDE - LEFT - RIGHT}" height="${HIGH - FOOT - top + 6}"/></clipPath>`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDE} ${HIGH}" width="${WIDE}" height="${HIGH}" font-family="sans-serif" font-size="12" fill="${ink}"><rect width="${WIDE}" height="${HIGH}" fill="${themeColour("card") || "#fff"}"/>${clip}<text x="20" y="26" font-size="16" font-weight="600">${escape(title)}</text>${legend.body}${axes}<g clip-path="url(#inside)">${drawn}${broken.join("")}</g></svg>`;
}

/** The names of the curves in rows below the title. */
function legendOf(curves: Curve[], isStack: boolean): { rows: number; body: string } {
  const named = curves.map((one, index) => ({ name: label(one.name).slice(0, 40), colour: colourOf(one, index, isStack), isRaw: one.isRaw })).filter((one) => !one.isRaw);
  let [left, rows] = [20, 1];
  const shown = named.slice(0, MOST_NAMED).map(({ name, colour }) => {
    const wide = 30 + name.length * 6.8;
    if (left + wide > WIDE - RIGHT) [left, rows] = [20, rows + 1];
    const item = `<rect x="${left}" y="${TOP + rows * 18 - 23}" width="10" height="10" rx="2" fill="${colour}"/><text x="${left + 15}" y="${TOP + rows * 18 - 14}">${escape(name)}</text>`;
    left += wide;
    return item;
  });
  const more = named.length - shown.length;
  return { rows, body: `${shown.join("")}${more > 0 ? `<text x="${left}" y="${TOP + rows * 18 - 14}">and ${more} more</text>` : ""}` };
}

/** From where to where the y axis goes: around what is shown. */
function heightOf(data: Curves, [first, last]: Range, isLog: boolean, isStack: boolean, [least, most]: [number | null, number | null]): Range {
  const seen = data.x.map((x) => x >= first && x <= last);
  const values = isStack
    ? [0, ...data.x.map((_, place) => data.curves.reduce((sum, one) => sum + (one.values[place] ?? 0), 0)).filter((_, place) => seen[place])]
    : data.curves.flatMap((one) => [one.values, one.low ?? [], one.high ?? []].flatMap((row) => row.filter((value, place): value is number => value != null && seen[place] === true && (!isLog || value > 0))));
  const [from, to] = values.length === 0 && isLog ? [0.1, 1] : extent(values);
  const [foot, head] = isLog || isStack ? [from, to] : around(from, to);
  const [low, high] = [least !== null && (!isLog || least > 0) ? least : isLog && from <= 0 ? to / 1e4 : foot, most ?? head];
  return low < high ? [low, high] : [low, low + (Math.abs(low) || 1)];
}

/** A curve with its range, its gaps, and a dot wherever a value stands alone. */
function curveOf(one: Curve, index: number, x: number[], { across, up, isLog }: Frame): string {
  const colour = colourOf(one, index, false);
  const at = (place: number, value: number): string => `${across(x[place] as number).toFixed(1)} ${up(value).toFixed(1)}`;
  const values = one.values.map((value) => (typeof value === "number" && isLog && value <= 0 ? null : value));
  const dots = one.isDots ? [...values.keys()].filter((place) => values[place] != null) : one.isRaw ? [] : isolated(values);
  const dotted = dots.map((place) => `M${at(place, values[place] as number)}h0`).join("");
  let path = "";
  let isDown = false;
  values.forEach((value, place) => {
    if (value === undefined || one.isDots) return;
    if (value !== null) path += `${isDown ? "L" : "M"}${at(place, value)}`;
    isDown = value !== null;
  });
  const known = [...values.keys()].filter((place) => one.low?.[place] != null && one.high?.[place] != null && (!isLog || (one.low[place] as number) > 0));
  const band = known.length < 2 ? "" : `<path d="M${[...known.map((place) => at(place, one.high?.[place] as number)), ...[...known].reverse().map((place) => at(place, one.low?.[place] as number))].join("L")}Z" fill="${colour}" opacity="0.16"/>`;
  const line = path === "" ? "" : `<path d="${path}" fill="none" stroke="${colour}" stroke-width="${one.isRaw ? 0.7 : 1.8}"${one.isFaint ? ` stroke-dasharray="5 4"` : ""} opacity="${one.isRaw ? 0.4 : 1}"/>`;
  const points = dotted === "" ? "" : `<path d="${dotted}" fill="none" stroke="${colour}" stroke-width="5" stroke-linecap="round"/>`;
  return `<g>${band}${line}${points}<title>${escape(one.name)}</title></g>`;
}

function stackOf(data: Curves, { across, up }: Frame): string {
  const sums = new Array<number>(data.x.length).fill(0);
  const distance = data.x.length > 1 ? (across(data.x.at(-1) as number) - across(data.x[0] as number)) / (data.x.length - 1) : 40;
  const wide = data.x.length <= FEW ? Math.min(40, distance * 0.82) : Math.max(0.6, distance);
  return data.curves.map((one, index) => {
    const colour = colourOf(one, index, true);
    const bars = data.x.map((x, place) => {
      const [from, to] = [sums[place] as number, (sums[place] as number) + (one.values[place] ?? 0)];
      sums[place] = to;
      return to > from ? `M${(across(x) - wide / 2).toFixed(1)} ${up(from).toFixed(1)}h${wide.toFixed(1)}V${up(to).toFixed(1)}h${(-wide).toFixed(1)}Z` : "";
    });
    return `<path d="${bars.join("")}" fill="${colour}"><title>${escape(one.name)}</title></path>`;
  }).join("");
}

function yAxis([low, high]: Range, panel: Pick<Panel, "y" | "unit">, { up, isLog }: Frame): string {
  const ticks = isLog ? decades(low, high) : round(low, high, 6);
  const words = tickLabels(ticks, panel.y[0] ?? "", panel.unit);
  return ticks.map((value, place) => `<path d="M${LEFT} ${up(value).toFixed(1)}H${WIDE - RIGHT}" stroke="#8884"/><text x="${LEFT - 8}" y="${(up(value) + 4).toFixed(1)}" text-anchor="end">${escape(words[place] ?? "")}</text>`).join("");
}

function xAxis([first, last]: Range, name: string, { across }: Frame): string {
  const isClock = name.endsWith("_ns");
  const isWhole = !isClock && name !== "time";
  const ticks = round(isClock ? first / 1e9 : first, isClock ? last / 1e9 : last, 8).filter((value) => !isWhole || Number.isInteger(value));
  const text = (value: number): string => (isClock ? clock(value) : name === "time" ? `${plain(value)} s` : plain(value));
  const marks = ticks.map((value) => `<text x="${across(isClock ? value * 1e9 : value).toFixed(1)}" y="${HIGH - FOOT + 18}" text-anchor="middle">${escape(text(value))}</text>`);
  return `${marks.join("")}<text x="${WIDE - RIGHT}" y="${HIGH - 6}" text-anchor="end">${escape(heading(name))}</text>`;
}

/** Round numbers between two, about so many. */
function round(low: number, high: number, count: number): number[] {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((times) => times * power >= raw) ?? 10) * power;
  if (!(step > 0) || !Number.isFinite(step)) return [low];
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - first + 1) }, (_, place) => Number(((first + place) * step).toPrecision(12)));
}

/** Powers of ten between two; of few also 2 and 5 times them. */
function decades(low: number, high: number): number[] {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((to - from) / 8));
  const times = to - from <= 3 ? [1, 2, 5] : [1];
  const found: number[] = [];
  for (let power = from; power <= to; power += every) found.push(...times.map((one) => one * 10 ** power));
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

function extent(values: number[]): Range {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}
