// What a panel's columns are as curves: on a common x axis, interrupted where nothing is known.
import { heading } from "../format";
import { column, number, type Columns, type Panel } from "../model";

export type Range = [number, number];

export interface Curve {
  name: string;
  /** Null where nothing is known, which interrupts the line; undefined where another curve has a place of its own. */
  values: (number | null | undefined)[];
  colour?: string;
  /** Behind the smoothed one. */
  isRaw?: boolean;
  /** Samples: dots, and no line between them. */
  isDots?: boolean;
  low?: Curve["values"];
  high?: Curve["values"];
  isFaint?: boolean;
}

export interface Curves {
  x: number[];
  curves: Curve[];
  /** Where a value is NaN or infinite, which no line can show; and in which curves, where that is to be told. */
  broken: number[];
  brokenIn?: string[];
  /** A place is several steps, of which one may be NaN and the others not: their number would say little. */
  isGrouped?: boolean;
  /** How far the x axis reaches beyond the last value: where only some of the steps were sampled, to the last step. */
  reach?: number;
}

const MOST_CURVES = 40;

/** The curves of a panel: one per y column, or one per value of the column it is split by. */
export function curvesOf(panel: Panel, columns: Columns, names: Record<string, string> = {}): Curves {
  const places = column(columns, panel.x).map((value) => number(value) ?? Number.NaN);
  const told = [...new Set(places)].sort((a, b) => a - b);
  const x = panel.chart === "stack" ? told : withPauses(told);
  const index = new Map(x.map((value, place) => [value, place]));
  const spread = (name: string, wanted: (row: number) => boolean): Curve["values"] => {
    const spreadOut: Curve["values"] = new Array<undefined>(x.length).fill(undefined);
    column(columns, name).forEach((value, row) => {
      if (!wanted(row)) return;
      const known = number(value);
      const usable = known !== null && Number.isFinite(known) && (panel.scale !== "log" || known > 0);
      spreadOut[index.get(places[row] as number) as number] = usable ? known : null;
    });
    return interrupted(x, spreadOut);
  };
  const [low, high] = panel.band;
  const drawn = panel.y.map((name) => column(columns, name));
  const isBroken = (row: number): boolean =>
    drawn.some((values) => {
      const value = number(values[row]);
      return value !== null && !Number.isFinite(value);
    });
  const isGrouped = column(columns, "sampled").some((count) => (number(count) ?? 0) > 1);
  const broken = [...new Set(places.filter((_, row) => isBroken(row)))];
  const curve = (name: string, y: string, wanted: (row: number) => boolean, hasBand: boolean): Curve => ({
    name,
    values: spread(y, wanted),
    ...(hasBand && low !== undefined && high !== undefined ? { low: spread(low, wanted), high: spread(high, wanted) } : {}),
  });
  if (panel.by !== "") {
    const groups = column(columns, panel.by).map(String);
    const distinct = [...new Set(groups)].slice(0, MOST_CURVES);
    const [y = ""] = panel.y;
    const isAlone = distinct.length === 1;
    return {
      x,
      broken,
      isGrouped,
      curves: distinct.map((group) =>
        curve(isAlone ? (names[y] ?? heading(y)) : group, y, (row) => groups[row] === group, distinct.length <= 6),
      ),
    };
  }
  const curves = panel.y.map((y, place) => ({
    ...curve(names[y] ?? heading(y), y, () => true, place === panel.y.length - (y === "layer" || panel.y.includes("others") ? 1 : panel.y.length)),
    isFaint: y === "others",
  }));
  return { x, broken, isGrouped, curves: curves.filter((one) => one.values.some((value) => value != null)) };
}

const GAP = 6; // this many times the usual distance is a gap
const MISSED = 1.5; // the same where rows tell that there was no value
const FEWEST = 4; // of fewer values nothing is usual

function usualOf(distances: number[]): number {
  const sorted = [...distances].sort((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? 0;
}

/** Places with one more in the middle of each stretch that is much longer than usual: nothing is known there. */
function withPauses(x: number[]): number[] {
  const distances = x.slice(1).map((value, place) => value - (x[place] as number));
  const usual = usualOf(distances);
  if (x.length < 2 * FEWEST || !(usual > 0)) return x;
  return x.flatMap((value, place) => (place > 0 && value - (x[place - 1] as number) > GAP * usual ? [((x[place - 1] as number) + value) / 2, value] : [value]));
}

/** Values with null wherever the line is to be interrupted, and undefined where it only has no point. */
function interrupted(x: number[], values: Curve["values"]): Curve["values"] {
  const known = values.flatMap((value, place) => (typeof value === "number" ? [place] : []));
  const usual = usualOf(known.slice(1).map((place, order) => (x[place] as number) - (x[known[order] as number] as number)));
  const found = [...values];
  known.slice(1).forEach((place, order) => {
    const before = known[order] as number;
    if (place === before + 1) return;
    const isTold = values.slice(before + 1, place).includes(null);
    const isGap = known.length >= FEWEST && (x[place] as number) - (x[before] as number) > (isTold ? MISSED : GAP) * usual;
    found.fill(isGap ? null : undefined, before + 1, place);
  });
  return found;
}

/** A range with some air at both ends; what is not below 0, or not above it, stays on its side. */
export function around(low: number, high: number): Range {
  const size = Math.max(Math.abs(low), Math.abs(high));
  const air = high - low > 1e-9 * size ? (high - low) * 0.06 : size * 0.1 || 1; // what differs by rounding alone is one value
  return [low >= 0 ? Math.max(0, low - air) : low - air, high <= 0 ? Math.min(0, high + air) : high + air];
}

/** Which values stand alone, between two gaps: a line does not show them. */
export function isolated(values: ArrayLike<number | null | undefined>): number[] {
  const found: number[] = [];
  let [last, count] = [-1, 0]; // the value before, and how many there are since the last gap
  for (let place = 0; place <= values.length; place += 1) {
    const value = place === values.length ? null : values[place];
    if (value === undefined) continue;
    if (value === null) {
      if (count === 1) found.push(last);
      count = 0;
    } else [last, count] = [place, count + 1];
  }
  return found;
}

/** Whether anything is known at a place, or is NaN there. */
export function hasValue(data: Curves, place: number): boolean {
  return data.curves.some((one) => one.values[place] != null) || data.broken.includes(data.x[place] as number);
}
