// What the server sends.

export type Cell = number | string | boolean | null | Cell[] | { [key: string]: Cell };
export type Scale = "linear" | "log" | "diverging" | "category";
export type Chart = "tiles" | "line" | "heat" | "stack" | "bars" | "waterfall" | "table" | "tree" | "findings" | "metrics" | "media";

export interface Option {
  title: string;
  scale: Scale;
  unit: string;
}

export interface Parameter {
  name: string;
  title: string;
  kind: "text" | "number" | "choice";
  options: Record<string, Option>;
  listed: boolean;
}

export interface Panel {
  name: string;
  page: string;
  title: string;
  chart: Chart;
  note: string;
  x: string;
  y: string[];
  by: string;
  band: string[];
  scale: Scale;
  unit: string;
  parameters: Parameter[];
  selects: Record<string, string>;
  marks: string;
  wide: boolean;
  optional: boolean;
  comparable: boolean;
}

export interface Table {
  name: string;
  per: string;
  doc: string;
  columns: [string, string][];
}

export interface Catalogue {
  version: string;
  directory: string;
  pages: Record<string, string>;
  panels: Panel[];
  tables: Table[];
  /** What the token allows. */
  may?: string[];
}

export interface Columns {
  sql: string;
  names: string[];
  types: string[];
  values: Cell[][];
  rows: number;
  is_cut: boolean;
}

/** What is wrong with a run, in the words that every screen uses. */
export interface Conclusion {
  state: "problem" | "problem, over" | "nothing found" | "nothing could be checked" | "not diagnosed";
  text: string;
  colour: "red" | "amber" | "green" | "grey";
  problems: number;
  over: number;
  infos: number;
  /** The title of the first problem. */
  first?: string;
}

export interface RunRow {
  run: string;
  is_known: boolean;
  state?: string;
  command?: string | null;
  host?: string | null;
  started_ns?: number | string | null;
  ended_ns?: number | string | null;
  steps?: number;
  processes?: number;
  last_round?: number | null;
  loss?: number | string | null;
  accuracy?: number | string | null;
  overhead_share?: number | null;
  rows_stored?: number;
  rows_missing?: number;
  size_bytes?: number;
  health?: Conclusion;
  /** Whether its metrics have been read. */
  is_measured?: boolean;
  error?: string;
  config?: Record<string, Cell>;
  /** The last, the smallest and the largest value of each. */
  metrics?: Record<string, [Cell, Cell, Cell]> | null;
  tags?: string[];
  note?: string;
  title?: string;
  is_archived?: boolean;
  version?: number;
}

export interface Evidence {
  text: string;
  sql: string;
  series: Cell[];
  others: Cell[];
  names: [string, string];
}

/** What `stethos prove` said; values are mean, low and high. */
export interface Proof {
  verdict: "proved" | "refuted" | "undecided";
  words: string;
  measure: string;
  before: number[];
  without: number[];
  control: number[];
}

export interface Action {
  action: number;
  text: string;
  reason: string;
  effect: string;
}

/** What somebody has decided about a finding. */
export interface Silence {
  state: "acknowledged" | "silenced";
  note: string;
  t_ns: string;
}

export interface Finding {
  key?: string;
  code: string;
  name: string;
  kind: string;
  severity: "info" | "warning" | "error";
  state: string;
  title: string;
  clients: string[];
  ranks: number[];
  layers: string[];
  process: string | null;
  first: number | null;
  last: number | null;
  unit: string;
  confidence: number;
  evidence: Evidence[];
  proof: Proof | null;
  actions: Action[];
  next_step: string;
  consequences: Finding[];
  open: boolean;
}

export interface Diagnosis {
  conclusion: Conclusion;
  findings: Finding[];
  checked: string[];
  not_checked: { code: string; name: string; reason: string }[];
  is_diagnosed: boolean;
  is_under_way: boolean;
  error: string;
  silences?: Record<string, Silence>;
}

/** A query of the user's own and how it is drawn; `view` is the heading it stands under. */
export interface OwnPanel {
  title: string;
  sql: string;
  chart: "table" | "line" | "bars" | "heat";
  x: string;
  y: string;
  by: string;
  note: string;
  view: string;
  is_saved_here?: boolean;
}

export interface OwnView {
  name: string;
  address: string;
  is_saved_here?: boolean;
}

export interface Own {
  panels: OwnPanel[];
  views: OwnView[];
  errors: string[];
}

export type Word = "better" | "worse" | "equal" | "chance" | "no difference shown" | "too little to tell" | "not judged";

export interface Quantity {
  quantity: string;
  unit: string;
  first: number | null;
  second: number | null;
  /** Relative; above 0 where the second is larger. */
  change: number | null;
  low: number | null;
  high: number | null;
  verdict: Word;
}

export interface Pair {
  first: string;
  second: string;
  verdict: string;
  cause: string;
  quantities: Quantity[];
  new_findings: string[];
  gone_findings: string[];
  notes: string[];
}

export interface Comparison {
  runs: string[];
  pairs: Pair[];
  settings: { name: string; values: Cell[]; differs: boolean }[];
}

export type Given = Record<string, string>;

/** A column's values by its name; empty if the result has no such column. */
export function column(columns: Columns, name: string): Cell[] {
  const index = columns.names.indexOf(name);
  return index < 0 ? [] : (columns.values[index] ?? []);
}

/** A value as a number; null where it is none. NaN and infinities come as text. */
export function number(value: Cell | undefined): number | null {
  if (typeof value === "number") return value;
  if (typeof value === "string" && value !== "") {
    const parsed = Number(value);
    return Number.isNaN(parsed) && value !== "NaN" ? null : parsed;
  }
  return null;
}
