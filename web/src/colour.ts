// Colours: of series, of severities, and of heat maps, in both themes.
import type { Scale } from "./model";

const LIGHT = ["#0d9488", "#d9480f", "#4263eb", "#9333ea", "#b45309", "#0891b2", "#be123c", "#4d7c0f", "#7c6f64", "#1d4ed8"];
const DARK = ["#2dd4bf", "#ff9466", "#8aa4ff", "#c792ea", "#fbbf24", "#38bdf8", "#fb7185", "#a3e635", "#c4b5a5", "#93c5fd"];
const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6dcd59", "#b4de2c", "#fde725"];
const AGAINST_LIGHT = ["#9f1239", "#e11d48", "#fb7185", "#fecdd3", "#f4f4f1", "#bfe3df", "#5eb8ae", "#0d9488", "#0b5e57"];
const AGAINST_DARK = ["#fb7185", "#e11d48", "#9f1239", "#5b1a2c", "#2b2f36", "#14423f", "#0f766e", "#14b8a6", "#5eead4"];
const STATUS_LIGHT = ["#a7d8cf", "#f59e0b", "#9333ea", "#dc2626"];
const STATUS_DARK = ["#1d5f57", "#fbbf24", "#c792ea", "#f87171"];
export const BROKEN = "#ff2d78";
export const STATUS = ["ok", "timeout", "dropped", "failed"];

export function isDark(): boolean {
  return document.documentElement.dataset.theme === "dark";
}

export function seriesColour(index: number): string {
  const colours = isDark() ? DARK : LIGHT;
  return colours[index % colours.length] as string;
}

// Phases have the same colour wherever they are shown.
const PHASES: Record<string, number> = {
  download: 2, compute: 0, upload: 3, aggregate: 4, evaluate: 5, observe: 8,
  data: 4, forward: 2, backward: 0, optimizer: 3, step: 3, other: 8, reported: 0, failed: 6, sent: 3, received: 2,
};

export function phaseColour(name: string, index: number): string {
  return seriesColour(PHASES[name] ?? index);
}

export function themeColour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function faded(colour: string, opacity: number): string {
  const value = Number.parseInt(colour.slice(1, 7), 16);
  return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${opacity})`;
}

/** From a value to a colour and back to ticks: the scale of one heat map. */
export interface Shading {
  colour(value: number): string;
  ticks: number[];
  place(value: number): number;
  stops: string[];
  isStepped: boolean;
}

export function shading(values: number[], scale: Scale): Shading {
  if (scale === "category") {
    const colours = isDark() ? STATUS_DARK : STATUS_LIGHT;
    return {
      colour: (value) => colours[Math.round(value)] ?? (colours[3] as string),
      ticks: [0, 1, 2, 3],
      place: (value) => value / 3,
      stops: colours,
      isStepped: true,
    };
  }
  const finite = values.filter((value) => Number.isFinite(value) && (scale !== "log" || value > 0)).sort((a, b) => a - b);
  const at = (part: number): number => finite[Math.min(finite.length - 1, Math.floor(part * finite.length))] ?? 0;
  // A few extreme values must not flatten everything else.
  let low = at(0.005);
  let high = at(0.995);
  let stops = VIRIDIS;
  if (scale === "diverging") {
    const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
    const isCosine = reach <= 1 && reach > 0.05;
    [low, high] = isCosine ? [-1, 1] : [-reach, reach];
    stops = isDark() ? AGAINST_DARK : AGAINST_LIGHT;
  }
  if (high === low) {
    const margin = Math.abs(low) * 0.1 || 1;
    [low, high] = scale === "log" ? [low / 2, high * 2] : [low - margin, high + margin];
  }
  const bend = scale === "log" ? Math.log : (value: number) => value;
  const place = (value: number): number => {
    if (scale === "log" && value <= 0) return 0;
    return Math.min(1, Math.max(0, (bend(value) - bend(low)) / (bend(high) - bend(low))));
  };
  const table = Array.from({ length: 256 }, (_, index) => blend(stops, index / 255));
  const parts = finite.length > 0 ? [0, 0.25, 0.5, 0.75, 1] : []; // of nothing but NaN there is no scale
  const ticks = parts.map((part) =>
    scale === "log" ? low * (high / low) ** part : low + (high - low) * part,
  );
  return {
    colour: (value) => (Number.isFinite(value) ? (table[Math.round(place(value) * 255)] as string) : BROKEN),
    ticks,
    place,
    stops,
    isStepped: false,
  };
}

function blend(stops: string[], part: number): string {
  const place = part * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const [from, to] = [stops[index] as string, stops[index + 1] as string];
  const mix = (shift: number): number => {
    const [a, b] = [from, to].map((one) => (Number.parseInt(one.slice(1), 16) >> shift) & 255) as [number, number];
    return Math.round(a + (b - a) * (place - index));
  };
  return `rgb(${mix(16)},${mix(8)},${mix(0)})`;
}
