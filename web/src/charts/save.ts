// A panel as a file: the numbers as CSV, the drawing as SVG or PNG. Made in the page; nothing is sent.
import { seriesColour, themeColour } from "../colour";
import { heading, plain, short } from "../format";
import type { Cell, Columns } from "../model";
import type { Curves } from "./plot";

const [WIDE, HIGH, LEFT, TOP, FOOT] = [960, 420, 70, 46, 40];

export function csvOf(columns: Columns): string {
  const lines = [columns.names.map(field).join(",")];
  for (let row = 0; row < columns.rows; row += 1) lines.push(columns.values.map((values) => field(values[row])).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

/** Curves as a table: their common x, and a column for each. */
export function tableOfCurves(x: string, data: Curves): Columns {
  const shown = data.curves.filter((one) => !one.isRaw);
  return {
    sql: "", names: [x, ...shown.map((one) => one.name)], types: ["DOUBLE", ...shown.map(() => "DOUBLE")],
    values: [data.x, ...shown.map((one) => one.values.map((value) => value ?? null))], rows: data.x.length, is_cut: false,
  };
}

/** A cell for CSV; one that a spreadsheet would run as a formula gets an apostrophe. */
function field(value: Cell | undefined): string {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function svgOf(title: string, x: string, data: Curves, isLog: boolean): string {
  const bend = isLog ? Math.log10 : (value: number): number => value;
  const values = data.curves.flatMap((one) => one.values.filter((value): value is number => value != null && (!isLog || value > 0)).map(bend));
  const [low, high] = extent(values);
  const [first, last] = extent(data.x);
  const across = (value: number): number => LEFT + ((value - first) / (last - first)) * (WIDE - LEFT - 20);
  const up = (value: number): number => HIGH - FOOT - ((bend(value) - low) / (high - low)) * (HIGH - FOOT - TOP);
  const parts = data.curves.map((one, index) => {
    const colour = one.colour ?? seriesColour(index);
    let path = "";
    let isDown = false;
    one.values.forEach((value, place) => {
      if (value === undefined) return;
      if (value === null || (isLog && value <= 0)) {
        isDown = false;
        return;
      }
      path += `${isDown ? "L" : "M"}${across(data.x[place] ?? 0).toFixed(1)} ${up(value).toFixed(1)}`;
      isDown = true;
    });
    const dots = one.isDots ? ` stroke-linecap="round" stroke-dasharray="0 1000"` : "";
    return `<path d="${path}" fill="none" stroke="${colour}" stroke-width="${one.isDots ? 5 : one.isRaw ? 0.7 : 1.8}"${dots} opacity="${one.isRaw ? 0.4 : 1}"><title>${escape(one.name)}</title></path>`;
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const ink = themeColour("ink") || "#222";
  const yTicks = ticks.map((part) => {
    const value = isLog ? 10 ** (low + (high - low) * part) : low + (high - low) * part;
    const at = HIGH - FOOT - part * (HIGH - FOOT - TOP);
    return `<path d="M${LEFT} ${at}H${WIDE - 20}" stroke="#8884"/><text x="${LEFT - 8}" y="${at + 4}" text-anchor="end">${short(value, "")}</text>`;
  });
  const xTicks = ticks.map((part) => `<text x="${across(first + (last - first) * part)}" y="${HIGH - 18}" text-anchor="middle">${plain(Number((first + (last - first) * part).toPrecision(4)))}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDE} ${HIGH}" width="${WIDE}" height="${HIGH}" font-family="sans-serif" font-size="12" fill="${ink}"><rect width="${WIDE}" height="${HIGH}" fill="${themeColour("card") || "#fff"}"/><text x="20" y="26" font-size="16" font-weight="600">${escape(title)}</text>${yTicks.join("")}${xTicks.join("")}<text x="${WIDE - 20}" y="${HIGH - 4}" text-anchor="end">${escape(heading(x))}</text>${parts.join("")}</svg>`;
}

function extent(values: number[]): [number, number] {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
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
