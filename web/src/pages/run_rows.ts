// Rows of the table of runs: what a column says about a run, sorting, and filters as they are typed.
import { number, type Cell, type Columns, type RunRow } from "../model";

export const BUILT_IN: Record<string, string> = {
  state: "state", verdict: "what is wrong", tags: "tags", last_round: "last round", steps: "steps", loss: "loss", accuracy: "accuracy",
  overhead_share: "overhead", duration_ms: "duration", started_ns: "started", size_bytes: "size", host: "host", note: "note", command: "command",
};
const FIRST_COLUMNS = ["state", "verdict", "tags", "last_round", "steps", "loss", "accuracy", "overhead_share", "duration_ms", "started_ns", "size_bytes"];
const [SETTINGS, METRICS] = [3, 2];
const PLACES = { last: 0, min: 1, max: 2 };

export function titleOf(row: RunRow): string {
  return row.title === undefined || row.title === "" ? row.run : row.title;
}

/** What a column says: one of ours, `config:NAME` or `metric:last:NAME`. */
export function valueOf(row: RunRow, key: string): Cell {
  if (key.startsWith("config:")) return row.config?.[key.slice(7)] ?? null;
  if (key.startsWith("metric:")) {
    const [, which = "last", ...name] = key.split(":");
    return row.metrics?.[name.join(":")]?.[PLACES[which as keyof typeof PLACES] ?? 0] ?? null;
  }
  if (key === "run") return titleOf(row);
  if (key === "verdict") return row.health?.text ?? null;
  if (key === "tags") return (row.tags ?? []).join(", ");
  if (key === "duration_ms") {
    const started = number(row.started_ns ?? null);
    return started === null ? null : ((number(row.ended_ns ?? null) ?? Date.now() * 1e6) - started) / 1e6;
  }
  return (row[key as keyof RunRow] as Cell | undefined) ?? null;
}

export function columnTitle(key: string): string {
  if (key.startsWith("config:")) return key.slice(7);
  if (key.startsWith("metric:")) return key.split(":").slice(2).join(":") + (key.startsWith("metric:last:") ? "" : ` (${key.split(":")[1]})`);
  return BUILT_IN[key] ?? key;
}

/** Every column that some run has, the usual ones first. */
export function columnsOf(rows: RunRow[]): string[] {
  const settings = new Set<string>();
  const metrics = new Set<string>();
  for (const row of rows) {
    for (const name of Object.keys(row.config ?? {})) settings.add(name);
    for (const name of Object.keys(row.metrics ?? {})) metrics.add(name);
  }
  const named = [...metrics].sort();
  return [...Object.keys(BUILT_IN), ...[...settings].sort().map((name) => `config:${name}`), ...named.map((name) => `metric:last:${name}`), ...named.flatMap((name) => [`metric:min:${name}`, `metric:max:${name}`])];
}

/** Without a choice: of the usual columns those that some run fills, a few hyperparameters that differ, a few metrics. */
export function firstColumns(rows: RunRow[]): string[] {
  const usual = FIRST_COLUMNS.filter((key) => ["state", "verdict"].includes(key) || rows.some((row) => ![null, "", 0].includes(valueOf(row, key) as string | null)));
  const settings = varying(rows).slice(0, SETTINGS);
  const own = columnsOf(rows).filter((key) => key.startsWith("metric:last:") && !/:(steps|rounds)\//.test(key) && !usual.includes(columnTitle(key))).slice(0, METRICS);
  const at = usual.findIndex((key) => ["overhead_share", "duration_ms", "started_ns"].includes(key));
  return [...usual.slice(0, at), ...settings, ...own, ...usual.slice(at)];
}

/** Hyperparameters in which these runs differ. */
export function differing(rows: RunRow[]): string[] {
  const values = new Map<string, Set<string>>();
  for (const row of rows) {
    for (const [name, value] of Object.entries(row.config ?? {})) (values.get(name) ?? values.set(name, new Set()).get(name))?.add(JSON.stringify(value));
  }
  const has = (name: string): number => rows.filter((row) => row.config?.[name] !== undefined).length;
  return [...values].filter(([name, found]) => found.size > 1 || has(name) < rows.length).map(([name]) => `config:${name}`).sort();
}

/** Hyperparameters of which these runs have several values. */
export function varying(rows: RunRow[]): string[] {
  return differing(rows).filter((key) => new Set(rows.map((row) => valueOf(row, key)).filter((value) => value !== null).map(String)).size > 1);
}

/** Runs as a table of these columns, with their names. */
export function tableOfRuns(rows: RunRow[], keys: string[]): Columns {
  const named = ["run", ...keys.filter((key) => key !== "run")];
  const values = named.map((key) => rows.map((row) => (key === "run" ? row.run : valueOf(row, key))));
  return { sql: "", names: named.map(columnTitle), types: named.map(() => "VARCHAR"), values, rows: rows.length, is_cut: false };
}

const NATURAL = new Intl.Collator("en", { numeric: true });

/** Sorted by a column; what is unknown comes last, whatever the direction. */
export function sorted(rows: RunRow[], key: string, isDown: boolean): RunRow[] {
  const keyed = rows.map((row) => ({ row, value: key === "run" ? titleOf(row) : valueOf(row, key) }));
  const known = (value: Cell): boolean => value !== null && value !== "" && value !== undefined;
  keyed.sort((a, b) => {
    if (known(a.value) !== known(b.value)) return known(a.value) ? -1 : 1;
    const [one, other] = [number(a.value), number(b.value)];
    const order = one !== null && other !== null ? (Number.isNaN(one) ? 1 : Number.isNaN(other) ? -1 : one - other) : NATURAL.compare(String(a.value), String(b.value));
    return isDown ? -order : order;
  });
  return keyed.map(({ row }) => row);
}

type Test = (row: RunRow) => boolean;
const TOKEN = /"([^"]*)"|\S+/g;
const CONDITION = /^([^<>=:]+)(<=|>=|!=|=|<|>|:)(.*)$/;

/** A filter in words: a part of the name or a tag, or `state:ended`, `verdict:NaN`, `tag:best`, `lr<0.01`, `loss>=2`, all of them. */
export function filterOf(text: string): Test {
  const tests = [...text.matchAll(TOKEN)].map(([token, quoted]): Test => {
    const condition = quoted === undefined ? CONDITION.exec(token) : null;
    if (condition === null) {
      const wanted = (quoted ?? token).toLowerCase();
      return (row) => `${row.run}\n${row.title ?? ""}\n${(row.tags ?? []).join("\n")}`.toLowerCase().includes(wanted);
    }
    const [, name = "", sign = "", right = ""] = condition;
    return (row) => compared(named(row, name), sign, right);
  });
  return (row) => tests.every((test) => test(row));
}

/** A filter that also keeps a column between two numbers, instead of what it said of that column; NaN is no limit. */
export function between(text: string, key: string, low: number, high: number): string {
  const name = key.startsWith("config:") || key.startsWith("metric:") ? columnTitle(key) : key;
  if (/[\s<>=:!"]/.test(name)) return text; // a filter cannot say it
  const others = [...text.matchAll(TOKEN)].map(([token]) => token).filter((token) => CONDITION.exec(token)?.[1] !== name);
  const told = (value: number): string => String(Number(value.toPrecision(4)));
  return [...others, ...(Number.isFinite(low) ? [`${name}>=${told(low)}`] : []), ...(Number.isFinite(high) ? [`${name}<=${told(high)}`] : [])].join(" ");
}

/** What a name in a filter means: a column of ours, a hyperparameter, or the last value of a metric. */
function named(row: RunRow, name: string): Cell {
  if (name === "tag") return (row.tags ?? []).join("\n");
  if (name === "name") return `${row.run}\n${row.title ?? ""}`;
  if (name === "verdict") return `${row.health?.text ?? ""}\n${row.health?.first ?? ""}`;
  if (name in BUILT_IN) return valueOf(row, name);
  return row.config?.[name] ?? row.metrics?.[name]?.[0] ?? null;
}

function compared(value: Cell, sign: string, right: string): boolean {
  if (value === null || value === undefined) return sign === "!=";
  const text = String(value).toLowerCase();
  const wanted = right.toLowerCase();
  if (sign === ":") return text.includes(wanted);
  const [one, other] = [number(value), right.trim() === "" ? null : number(right)];
  if (sign === "=" || sign === "!=") return ((one !== null && other !== null ? one === other : text === wanted) === (sign === "="));
  if (one === null || other === null) return false;
  return sign === "<" ? one < other : sign === ">" ? one > other : sign === "<=" ? one <= other : one >= other;
}

/** Runs by what a column says, in its order. */
export function groupsOf(rows: RunRow[], key: string): Map<string, RunRow[]> {
  const groups = new Map<string, RunRow[]>();
  for (const row of rows) {
    const value = valueOf(row, key);
    const name = value === null || value === "" ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value);
    (groups.get(name) ?? groups.set(name, []).get(name))?.push(row);
  }
  const order = (one: string, other: string): number => (Number.isFinite(Number(one)) && Number.isFinite(Number(other)) ? Number(one) - Number(other) : NATURAL.compare(one, other));
  return new Map([...groups].sort(([one], [other]) => order(one, other)));
}
