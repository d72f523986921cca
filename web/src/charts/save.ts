// A panel as a file: the numbers as CSV, the drawing as SVG or PNG. Made in the page; nothing is sent.
import type { Cell, Columns } from "../model";
import { hasValue, type Curves } from "./series";

export function csvOf(columns: Columns): string {
  const lines = [columns.names.map(field).join(",")];
  for (let row = 0; row < columns.rows; row += 1) lines.push(columns.values.map((values) => field(values[row])).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

/** Curves as a table: their common x, and a column for each. */
export function tableOfCurves(x: string, data: Curves): Columns {
  const shown = data.curves.filter((one) => !one.isRaw);
  const rows = [...data.x.keys()].filter((place) => hasValue(data, place));
  return {
    sql: "", names: [x, ...shown.map((one) => one.name)], types: ["DOUBLE", ...shown.map(() => "DOUBLE")],
    values: [rows.map((place) => data.x[place] as number), ...shown.map((one) => rows.map((place) => one.values[place] ?? null))], rows: rows.length, is_cut: false,
  };
}

/** A cell for CSV; one that a spreadsheet would run as a formula gets an apostrophe. */
function field(value: Cell | undefined): string {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function escape(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;").replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "?");
}

export async function savePng(svg: string, name: string): Promise<void> {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth * 2, image.naturalHeight * 2];
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  canvas.toBlob((blob) => blob !== null && saveBlob(blob, name), "image/png");
}

export function saveText(text: string, name: string, kind: string): void {
  saveBlob(new Blob([text], { type: kind }), name);
}

function saveBlob(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "_").slice(0, 120);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
