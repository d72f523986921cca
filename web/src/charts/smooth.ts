// Curves as they are shown: smoothed, cut at gaps, put on one x axis.
import type { Curve, Curves } from "./series";

const MOST_BANDS = 4; // of more curves the ranges would hide each other
const GAP = 6; // this many times the usual distance is a gap

export interface Line {
  name: string;
  x: number[];
  y: (number | null)[];
  colour?: string;
  isDots?: boolean;
  low?: (number | null)[];
  high?: (number | null)[];
}

const LEAP = 1e3;
const FEWEST = 4;

/** Whether values leap by orders of magnitude, as a loss that diverges: that is seen on a logarithmic scale only. */
export function isLeaping(values: (number | null)[]): boolean {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  if (known.length < FEWEST || known.some((value) => value <= 0)) return false;
  const sorted = known.sort((a, b) => a - b);
  return (sorted.at(-1) ?? 1) / (sorted[sorted.length >> 1] ?? 1) > LEAP;
}

/** The mean that forgets: each value weighs `weight` times as much as the one after it, without leaning towards 0. */
export function smoothed(values: (number | null | undefined)[], weight: number): (number | null | undefined)[] {
  let last = 0;
  let share = 1;
  return values.map((value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return value;
    last = last * weight + (1 - weight) * value;
    share *= weight;
    return last / (1 - share);
  });
}

/** A line with a place for "nothing is known" wherever two neighbours are much farther apart than usual. */
export function withGaps(line: Line): Line {
  if (line.x.length < 8 || line.isDots) return line;
  const steps = line.x.slice(1).map((value, index) => value - (line.x[index] as number)).sort((a, b) => a - b);
  const usual = steps[steps.length >> 1] ?? 0;
  if (usual <= 0 || (steps.at(-1) ?? 0) <= GAP * usual) return line;
  const x: number[] = [];
  const y: (number | null)[] = [];
  line.x.forEach((value, index) => {
    const before = line.x[index - 1];
    if (before !== undefined && value - before > GAP * usual) {
      x.push((before + value) / 2);
      y.push(null);
    }
    x.push(value);
    y.push(line.y[index] ?? null);
  });
  return { name: line.name, x, y, ...(line.colour === undefined ? {} : { colour: line.colour }) };
}

/** Lines on a common x axis, as they are before they are smoothed: made once, whatever the smoothing. */
export interface Placed {
  x: number[];
  broken: number[];
  /** Of several lines those with a value that is no finite number. */
  brokenIn?: string[];
  lines: { line: Line; values: (number | null | undefined)[]; low?: (number | null)[]; high?: (number | null)[] }[];
}

/** Lines, cut at gaps already, on a common x axis; what cannot be drawn is nothing there. */
export function placed(cut: Line[], isLog: boolean): Placed {
  const isSame = cut.every((line) => line.x.length === cut[0]?.x.length && line.x.every((value, index) => value === cut[0]?.x[index]));
  const x = isSame ? (cut[0]?.x ?? []) : [...new Set(cut.flatMap((line) => line.x))].sort((a, b) => a - b);
  const index = isSame ? null : new Map(x.map((value, place) => [value, place]));
  const broken = new Set<number>();
  const usable = (value: number | null): number | null => (value !== null && Number.isFinite(value) && (!isLog || value > 0) ? value : null);
  const lines = cut.map((line) => {
    const place = (values: (number | null)[]): (number | null | undefined)[] => {
      if (index === null) return values.map(usable);
      const found: (number | null | undefined)[] = new Array<undefined>(x.length).fill(undefined);
      line.x.forEach((value, row) => (found[index.get(value) as number] = usable(values[row] ?? null)));
      return found;
    };
    line.y.forEach((value, row) => isBroken(value) && broken.add(line.x[row] as number));
    const hasBand = line.low !== undefined && line.high !== undefined && cut.length <= MOST_BANDS;
    const band = hasBand ? { low: place(line.low ?? []) as (number | null)[], high: place(line.high ?? []) as (number | null)[] } : {};
    return { line, values: place(line.y), ...band };
  });
  const named = cut.length > 1 ? cut.filter((line) => line.y.some(isBroken)).map((line) => line.name) : [];
  return { x, broken: [...broken], lines, ...(named.length > 0 ? { brokenIn: named } : {}) };
}

function isBroken(value: number | null): boolean {
  return value !== null && !Number.isFinite(value);
}

/** Lines with what they were before they were smoothed behind them. */
export function together({ x, broken, brokenIn, lines }: Placed, weight: number): Curves {
  const curves: Curve[] = [];
  const behind: Curve[] = [];
  for (const { line, values, low, high } of lines) {
    const shape = { name: line.name, ...(line.colour === undefined ? {} : { colour: line.colour }) };
    if (weight > 0 && !line.isDots) {
      behind.push({ ...shape, values, isRaw: true });
      curves.push({ ...shape, values: smoothed(values, weight), isRaw: false });
    } else if (low !== undefined && high !== undefined) {
      curves.push({ ...shape, values, isRaw: false, low, high });
    } else {
      curves.push({ ...shape, values, isRaw: false, ...(line.isDots ? { isDots: true } : {}) });
    }
  }
  return { x, curves: [...behind, ...curves], broken, ...(brokenIn === undefined ? {} : { brokenIn }) };
}
