// Curves as they are shown: smoothed, cut at gaps, put on one x axis.
import type { Curve, Curves } from "./plot";

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

/** Lines, cut at gaps already, on a common x axis; smoothed, with what they were behind them. */
export function together(cut: Line[], weight: number, isLog: boolean): Curves {
  const isSame = cut.every((line) => line.x.length === cut[0]?.x.length && line.x.every((value, index) => value === cut[0]?.x[index]));
  const x = isSame ? (cut[0]?.x ?? []) : [...new Set(cut.flatMap((line) => line.x))].sort((a, b) => a - b);
  const index = isSame ? null : new Map(x.map((value, place) => [value, place]));
  const broken = new Set<number>();
  const curves: Curve[] = [];
  const faint: Curve[] = [];
  for (const line of cut) {
    const place = (values: (number | null)[]): (number | null | undefined)[] => {
      const placed: (number | null | undefined)[] = index === null ? [...values] : new Array<undefined>(x.length).fill(undefined);
      if (index !== null) line.x.forEach((value, row) => (placed[index.get(value) as number] = values[row] ?? null));
      return placed;
    };
    const usable = line.y.map((value, row) => {
      if (value !== null && !Number.isFinite(value)) broken.add(line.x[row] as number);
      return value !== null && Number.isFinite(value) && (!isLog || value > 0) ? value : null;
    });
    const colour = line.colour === undefined ? {} : { colour: line.colour };
    const values = place(usable);
    if (weight > 0 && !line.isDots) {
      faint.push({ name: line.name, values, ...colour, isRaw: true });
      curves.push({ name: line.name, values: smoothed(values, weight), ...colour, isRaw: false });
    } else if (line.low !== undefined && line.high !== undefined && cut.length <= 4) {
      const fit = (ends: (number | null)[]) => place(ends.map((value) => (value !== null && Number.isFinite(value) && (!isLog || value > 0) ? value : null))) as (number | null)[];
      curves.push({ name: line.name, values, ...colour, isRaw: false, low: fit(line.low), high: fit(line.high) });
    } else {
      curves.push({ name: line.name, values, ...colour, isRaw: false, ...(line.isDots ? { isDots: true } : {}) });
    }
  }
  return { x, curves: [...faint, ...curves], broken: [...broken] };
}
