// The result of a query: a table, or drawn from the columns that were chosen, or guessed where none were.
import { useAround } from "../context";
import type { Columns, OwnPanel, Panel } from "../model";
import { svgOfBars, svgOfHeat } from "./picture";
import { Plot } from "./plot";
import { curvesOf } from "./series";
import { svgOf } from "./lines_svg";
import { csvOf, savePng, saveText } from "./save";
import { Bars, DataTable } from "./small";
import { Heat } from "./heat";

export type Kind = OwnPanel["chart"];
export const KINDS: Kind[] = ["table", "line", "bars", "heat"];
const MOST_BARS = 60;

export interface Shape {
  kind: Kind;
  x: string;
  y: string;
  by: string;
}

/** Which columns are drawn: those that were asked for, else what fits their types. */
export function shapeOf(answer: Columns, kind: Kind, given: { x?: string | undefined; y?: string | undefined; by?: string | undefined }): Shape {
  const numeric = answer.names.filter((_, index) => /INT|DOUBLE|FLOAT|DECIMAL/.test(answer.types[index] ?? ""));
  const other = answer.names.filter((name) => !numeric.includes(name));
  const isSpread = kind === "line" || kind === "heat";
  const x = given.x || ((isSpread ? numeric[0] : numeric.at(-1)) ?? "");
  const y = given.y || (isSpread ? (numeric.find((name) => name !== x) ?? "") : (other[0] ?? answer.names[0] ?? ""));
  const by = given.by ?? (isSpread ? (other[0] ?? "") : "");
  return { kind, x, y, by };
}

function panelOf(title: string, { kind, x, y, by }: Shape): Panel {
  return {
    name: "asked", page: "sql", title, chart: kind, note: "", x, y: [kind === "heat" ? by : y], by: kind === "heat" ? "" : by, band: [], scale: "linear", unit: "",
    parameters: [], selects: {}, marks: "", wide: true, optional: false, comparable: false,
  };
}

/** The columns that a drawing takes: a heat map's values are called so, and of bars there are not too many. */
function drawn(answer: Columns, { kind, y }: Shape): Columns {
  if (kind === "heat") return { ...answer, names: answer.names.map((name) => (name === y ? "value" : name)) };
  if (kind === "bars") return { ...answer, rows: Math.min(answer.rows, MOST_BARS), values: answer.values.map((one) => one.slice(0, MOST_BARS)) };
  return answer;
}

/** What is wrong with the chosen columns; empty if nothing is. */
function objection(answer: Columns, { kind, x, y, by }: Shape): string {
  if (kind === "table") return "";
  const wanted = [x, y, ...(by === "" && kind !== "heat" ? [] : [by])];
  const missing = wanted.find((name) => !answer.names.includes(name));
  return missing === undefined ? "" : missing === "" ? `A drawing as ${kind} needs ${kind === "heat" ? "two numbers and a column for the rows" : "a number"}; the result has ${answer.names.join(", ")}.` : `The result has no column ${missing}; it has ${answer.names.join(", ")}.`;
}

export function Asked({ title, answer, shape, height = 300 }: { title: string; answer: Columns; shape: Shape; height?: number }) {
  const { theme } = useAround();
  if (answer.rows === 0) return <p class="nothing">The query has no rows.</p>;
  const wrong = objection(answer, shape);
  if (wrong !== "") return <p class="trouble" role="alert">{wrong}</p>;
  const panel = panelOf(title, shape);
  const columns = drawn(answer, shape);
  switch (shape.kind) {
    case "table":
      return <DataTable columns={answer} title={title} raw />;
    case "line":
      return <Plot panel={panel} data={curvesOf(panel, columns)} theme={theme} height={height} label={title} />;
    case "bars":
      return <Bars panel={panel} columns={columns} />;
    case "heat":
      return <Heat panel={panel} columns={columns} scale="linear" unit="" title={shape.y} findings={[]} theme={theme} onPick={() => undefined} />;
  }
}

/** The result as files. */
export function AskedFiles({ title, answer, shape }: { title: string; answer: Columns; shape: Shape }) {
  if (answer.rows === 0) return null;
  const panel = panelOf(title, shape);
  const svg = (): string => {
    const columns = drawn(answer, shape);
    if (shape.kind === "bars") return svgOfBars(panel, columns, "");
    if (shape.kind === "heat") return svgOfHeat(panel, columns, "linear");
    return svgOf(title, panel, curvesOf(panel, columns));
  };
  return (
    <span class="save" role="group" aria-label={`Save ${title}`}>
      {shape.kind !== "table" && objection(answer, shape) === "" && (
        <>
          <button type="button" onClick={() => void savePng(svg(), `${title}.png`)}>PNG</button>
          <button type="button" onClick={() => saveText(svg(), `${title}.svg`, "image/svg+xml")}>SVG</button>
        </>
      )}
      <button type="button" onClick={() => saveText(csvOf(answer), `${title}.csv`, "text/csv")}>CSV</button>
    </span>
  );
}
