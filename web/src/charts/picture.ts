// Heat maps, bars and rounds as pictures of their own: the same numbers as on the page, as SVG.
import { phaseColour, seriesColour, shading, themeColour } from "../colour";
import { duration, label, measured, plain } from "../format";
import { column, number, type Columns, type Panel, type Scale } from "../model";
import { EMPTY, gridOf } from "./heat";
import { escape } from "./save";

const [WIDE, LEFT, TOP] = [960, 150, 46];

function framed(title: string, high: number, body: string): string {
  const [ink, card] = [themeColour("ink") || "#222", themeColour("card") || "#fff"];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDE} ${high}" width="${WIDE}" height="${high}" font-family="sans-serif" font-size="12" fill="${ink}"><rect width="${WIDE}" height="${high}" fill="${card}"/><text x="20" y="26" font-size="16" font-weight="600">${escape(title)}</text>${body}</svg>`;
}

function named(text: string, y: number): string {
  return `<text x="${LEFT - 8}" y="${y}" text-anchor="end">${escape(label(text).slice(0, 20))}</text>`;
}

export function svgOfHeat(panel: Panel, columns: Columns, scale: Scale): string {
  const grid = gridOf(columns, panel.x, panel.y[0] ?? "");
  const shade = shading([...grid.cells].filter((value) => value !== EMPTY), scale);
  const row = Math.max(3, Math.min(24, 600 / Math.max(1, grid.rows.length)));
  const wide = (WIDE - LEFT - 20) / Math.max(1, grid.xs.length);
  const every = Math.ceil(13 / row);
  let body = "";
  grid.rows.forEach((name, place) => {
    if (place % every === 0) body += named(name, TOP + (place + 0.5) * row + 4);
    grid.xs.forEach((_, x) => {
      const value = grid.cells[place * grid.xs.length + x] as number;
      if (value === EMPTY) return;
      body += `<rect x="${(LEFT + x * wide).toFixed(1)}" y="${(TOP + place * row).toFixed(1)}" width="${wide.toFixed(2)}" height="${row.toFixed(2)}" fill="${shade.colour(value)}"/>`;
    });
  });
  const foot = TOP + grid.rows.length * row;
  const some = Math.max(1, Math.ceil(grid.xs.length / 10));
  grid.xs.forEach((value, x) => {
    if (x % some === 0) body += `<text x="${(LEFT + (x + 0.5) * wide).toFixed(1)}" y="${foot + 18}" text-anchor="middle">${plain(value)}</text>`;
  });
  return framed(panel.title, Math.ceil(foot + 40), body);
}

export function svgOfBars(panel: Panel, columns: Columns, unit: string): string {
  const values = column(columns, panel.x).map((value) => number(value) ?? 0);
  const names = column(columns, panel.y[0] ?? "").map(String);
  const groups = panel.by === "" ? [] : column(columns, panel.by).map(String);
  const most = Math.max(...values, 1e-300);
  const body = names.map((name, row) => {
    const y = TOP + row * 24;
    const long = ((values[row] ?? 0) / most) * (WIDE - LEFT - 120);
    const colour = groups.length > 0 ? phaseColour(groups[row] ?? "", row) : seriesColour(0);
    return `${named(name, y + 15)}<rect x="${LEFT}" y="${y + 3}" width="${Math.max(0, long).toFixed(1)}" height="16" fill="${colour}"/><text x="${(LEFT + Math.max(0, long) + 6).toFixed(1)}" y="${y + 15}">${escape(measured(values[row] ?? 0, panel.x, unit))}</text>`;
  });
  return framed(panel.title, TOP + names.length * 24 + 16, body.join(""));
}

export function svgOfTurns(title: string, columns: Columns): string {
  const numbers = (name: string): (number | null)[] => column(columns, name).map(number);
  const clients = column(columns, "client").map(String);
  const [starts, durations, waits] = [numbers("start_ms"), numbers("duration_ms"), numbers("wait_ms")];
  const phases = ["download", "compute", "upload"];
  const parts = phases.map((phase) => numbers(`${phase}_ms`));
  const isCritical = column(columns, "is_critical");
  const end = Math.max(...clients.map((_, row) => (starts[row] ?? 0) + (durations[row] ?? 0) + (waits[row] ?? 0)), 1e-9);
  const across = (ms: number): number => (ms / end) * (WIDE - LEFT - 130);
  const body = clients.map((client, row) => {
    const y = TOP + row * 22;
    let from = starts[row] ?? 0;
    const bars = phases.map((phase, place) => {
      const ms = parts[place]?.[row] ?? 0;
      const bar = `<rect x="${(LEFT + across(from)).toFixed(1)}" y="${y + 2}" width="${across(ms).toFixed(1)}" height="16" fill="${phaseColour(phase, place)}"/>`;
      from += ms;
      return bar;
    });
    const said = isCritical[row] === true ? "critical path" : duration(durations[row] ?? 0);
    return `${named(client, y + 14)}${bars.join("")}<text x="${WIDE - 116}" y="${y + 14}">${escape(said)}</text>`;
  });
  return framed(title, TOP + clients.length * 22 + 16, body.join(""));
}
