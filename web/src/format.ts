// Numbers, times and sizes as people read them. The unit is in a column's name.
import { number, type Cell } from "./model";

const MINUS = "\u2212";

export function plain(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en-US").replace("-", MINUS);
  if (size >= 1e6 || size < 1e-4) return Number(value.toPrecision(3)).toExponential().replace("e+", "e").replaceAll("-", MINUS);
  if (size < 1e-3) return String(Number(value.toPrecision(3))).replace("-", MINUS);
  if (size >= 1e4) return Math.round(value).toLocaleString("en-US").replace("-", MINUS);
  if (size < 1) return String(Number(value.toPrecision(4))).replace("-", MINUS);
  const digits = size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return String(Number(value.toFixed(digits))).replace("-", MINUS);
}

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${value < 0 ? MINUS : ""}${size >= 100 || unit === 0 ? size.toFixed(0) : size.toPrecision(3)} ${units[unit]}`;
}

export function duration(ms: number): string {
  if (ms === 0) return "0 ms";
  if (ms < 1) return `${plain(ms * 1000)} µs`;
  if (ms < 1000) return `${Number(ms.toPrecision(3))} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

export function share(value: number): string {
  const percent = value * 100;
  return `${Number(percent.toPrecision(percent >= 10 ? 3 : 2))} %`;
}

export function moment(ns: number): string {
  const date = new Date(ns / 1e6);
  const two = (part: number) => String(part).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/** The time of day, for an axis. */
export function clock(seconds: number): string {
  const text = moment(seconds * 1e9).slice(11);
  const rest = seconds % 1;
  return rest > 0.001 && rest < 0.999 ? `${text}${rest.toFixed(1).slice(1)}` : text;
}

export function ago(ns: number): string {
  const ms = Date.now() - ns / 1e6;
  if (ms < 1500) return "just now";
  if (ms > 60 * 86_400_000) return moment(ns).slice(0, 10);
  const [count = "", unit = ""] = duration(ms < 60_000 ? Math.round(ms / 1000) * 1000 : ms).split(" ");
  return `${count} ${unit} ago`;
}

/** A number in the unit that its column's name, or the panel, tells. */
export function measured(value: number, name: string, unit = ""): string {
  if (!Number.isFinite(value)) return plain(value);
  if (name.endsWith("_bytes") || unit === "bytes") return bytes(value);
  if (name.endsWith("duration_ns")) return duration(value / 1e6);
  if (name.endsWith("_ns")) return moment(value);
  if (name.endsWith("_ms") || unit === "ms") return duration(value);
  if (name.endsWith("_s") && !name.endsWith("_per_s")) return duration(value * 1000);
  if (name.endsWith("_share") || name === "accuracy" || name === "overhead_budget") return share(value);
  return plain(value);
}

/** A number for an axis or a legend: as few characters as tell it apart. */
export function short(value: number, name: string, unit = ""): string {
  const size = Math.abs(value);
  const isPlain = measured(1, name, unit) === "1";
  if (!isPlain || value === 0 || (size >= 1e-4 && size < 1e5)) return measured(value, name, unit);
  return Number(value.toPrecision(2)).toExponential().replace("e+", "e").replaceAll("-", MINUS);
}

/** The labels of an axis: with as many digits as tell neighbours apart. */
export function tickLabels(ticks: (number | null)[], name: string, unit = ""): string[] {
  const known = ticks.filter((tick) => tick !== null && tick !== 0).map((tick) => Math.abs(tick as number));
  const isEven = Math.max(...known) / Math.min(...known) < 1e3; // of a linear scale: all are written alike
  const isWhole = isEven && Math.max(...known) < 1e6;
  const labels = ticks.map((tick) => (tick === null ? "" : isWhole && Number.isInteger(tick) ? measured(tick, name, unit) : short(tick, name, unit)));
  const shown = labels.filter((text) => text !== "");
  const isBytes = name.endsWith("_bytes") || unit === "bytes";
  if (!isBytes || new Set(shown).size === shown.length) return labels;
  const largest = Math.max(...ticks.map((tick) => Math.abs(tick ?? 0)));
  const place = Math.min(4, Math.floor(Math.log10(largest) / 3));
  const [one = 0, other = 1] = ticks.filter((tick) => tick !== null);
  const digits = Math.max(0, Math.ceil(3 * place - Math.log10(Math.abs(other - one))));
  return ticks.map((tick) => (tick === null ? "" : `${(tick / 1000 ** place).toFixed(Math.min(6, digits))} ${["B", "kB", "MB", "GB", "TB"][place]}`));
}

/** `1 run`, `2 runs`. */
export function counted(count: number, what: string): string {
  return `${plain(count)} ${what}${count === 1 ? "" : "s"}`;
}

// As `stethos/unseen.py` has them, and all joiners: here they are shown, not taken out.
const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** A name as text that can be seen: blanks alone are quoted, and marks that hide or reorder text are spelled out. */
export function label(name: string): string {
  const seen = name.replace(UNSEEN, (mark) => `\\u${mark.codePointAt(0)?.toString(16).padStart(4, "0")}`);
  return seen.trim() === "" ? `"${seen}"` : seen;
}

/** Any cell as text. */
export function cell(value: Cell | undefined, name: string, unit = ""): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value === "number") return measured(value, name, unit);
  if (name === "command") return value.replace(/^\S*\/(?=\S)/, ""); // the interpreter without its directory
  if (/^(NaN|-?Infinity)$/.test(value) || (name.endsWith("_ns") && /^\d+$/.test(value))) {
    return measured(number(value) ?? Number.NaN, name, unit);
  }
  return name === "client" || name === "layer" || name === "run" ? label(value) : value;
}

/** A hyperparameter as it was set; a number with many digits in short, which `isShort` says. */
export function setting(value: Cell | undefined): { text: string; isShort: boolean } {
  if (typeof value === "boolean") return { text: String(value), isShort: false };
  if (typeof value !== "number" || !Number.isFinite(value)) return { text: cell(value, ""), isShort: false };
  const whole = String(value).replace("-", MINUS);
  const text = whole.length <= 9 ? whole : String(Number(value.toPrecision(4))).replace("-", MINUS);
  return { text, isShort: text !== whole };
}

/** A column's name as a heading: its unit is shown with every value. */
export function heading(name: string): string {
  if (name === "t_ns") return "time";
  const words = name.replace(/_(ms|bytes|ns|share)$/, "").replaceAll("_", " ");
  return words === "" ? name : words;
}
