// A heat map on a canvas: rows of names, columns of steps or rounds, with a legend, a cursor and keys.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { BROKEN, faded, shading, STATUS, themeColour, type Shading } from "../colour";
import { label, measured, plain, short } from "../format";
import { column, number, type Columns, type Finding, type Panel, type Scale } from "../model";

export interface Grid {
  rows: string[];
  xs: number[];
  cells: Float64Array;
}

export const EMPTY = Number.NEGATIVE_INFINITY; // no such cell; NaN is a value
const NATURAL = new Intl.Collator("en", { numeric: true });

export function gridOf(columns: Columns, x: string, y: string): Grid {
  const names = column(columns, y).map(String);
  const places = column(columns, x).map((value) => number(value) ?? 0);
  const values = column(columns, "value");
  const rows = [...new Set(names)];
  if (!column(columns, "place").some((value) => value !== null)) rows.sort(NATURAL.compare); // else they come in order
  const xs = [...new Set(places)].sort((a, b) => a - b);
  const rowOf = new Map(rows.map((name, index) => [name, index]));
  const xOf = new Map(xs.map((value, index) => [value, index]));
  const cells = new Float64Array(rows.length * xs.length).fill(EMPTY);
  names.forEach((name, index) => {
    const value = number(values[index]);
    if (value !== null) {
      const place = (rowOf.get(name) as number) * xs.length + (xOf.get(places[index] as number) as number);
      cells[place] = value === EMPTY ? Number.NaN : value;
    }
  });
  return { rows, xs, cells };
}

interface Drawn {
  panel: Panel;
  columns: Columns;
  scale: Scale;
  unit: string;
  title: string;
  selected?: string | undefined;
  findings: Finding[];
  theme: string;
  onPick: (row: string, x: number) => void;
}

export function Heat({ panel, columns, scale, unit, title, selected, findings, theme, onPick }: Drawn) {
  const y = panel.y[0] ?? "";
  const grid = useMemo(() => gridOf(columns, panel.x, y), [columns, panel.x, y]);
  const shade = useMemo(
    () => shading([...grid.cells].filter((value) => value !== EMPTY), scale),
    [grid, scale, theme],
  );
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [cursor, setCursor] = useState<{ row: number; x: number } | null>(null);
  const place = useRef<HTMLDivElement>(null);

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const watcher = new ResizeObserver(() => setWidth(element.clientWidth));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);

  const [all] = column(columns, "of_rows").map(number);
  const longest = Math.max(...grid.rows.map((name) => label(name).length), 2);
  const left = Math.min(width * 0.34, Math.max(44, Math.min(longest, 34) * 6.9 + 16));
  const most = y === "bucket" ? 260 : 560; // a histogram is looked at as a whole, not row by row
  const rowHeight = Math.max(3, Math.min(26, Math.floor(most / Math.max(1, grid.rows.length))));
  const top = 6;
  const height = grid.rows.length * rowHeight + top + 30;
  const cellWidth = (width - left - 8) / Math.max(1, grid.xs.length);
  const accused = new Set(findings.filter((one) => one.severity !== "info").flatMap((one) => [...one.clients, ...one.layers]));

  useEffect(() => {
    const element = canvas.current;
    if (element === null || width === 0) return;
    const ratio = devicePixelRatio;
    element.width = width * ratio;
    element.height = height * ratio;
    const ctx = element.getContext("2d");
    if (ctx === null) return;
    ctx.scale(ratio, ratio);
    draw(ctx, grid, shade, { left, top, rowHeight, cellWidth, width, selected, accused, xName: panel.x });
    if (cursor !== null) {
      ctx.strokeStyle = themeColour("ink");
      ctx.lineWidth = 2;
      ctx.strokeRect(left + cursor.x * cellWidth, top + cursor.row * rowHeight, Math.max(2, cellWidth), rowHeight);
    }
  }, [grid, shade, width, height, selected, cursor, theme, accused.size]);

  const at = (event: MouseEvent): { row: number; x: number } | null => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - top) / rowHeight);
    const x = Math.floor((event.clientX - box.left - left) / cellWidth);
    const isInside = row >= 0 && row < grid.rows.length && x < grid.xs.length;
    return isInside ? { row, x: Math.max(0, x) } : null;
  };
  const pick = (where: { row: number; x: number } | null): void => {
    if (where !== null) onPick(grid.rows[where.row] as string, grid.xs[where.x] as number);
  };
  const keyed = (event: KeyboardEvent): void => {
    const moves: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (move !== undefined) {
      event.preventDefault();
      const from = cursor ?? { row: 0, x: 0 };
      setCursor({
        row: Math.max(0, Math.min(grid.rows.length - 1, from.row + move[0])),
        x: Math.max(0, Math.min(grid.xs.length - 1, from.x + move[1])),
      });
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pick(cursor);
    }
  };
  const isPartly = typeof all === "number" && all > grid.rows.length;
  const value = cursor === null ? EMPTY : (grid.cells[cursor.row * grid.xs.length + cursor.x] ?? EMPTY);
  const said = value === EMPTY ? "no value" : scale === "category" ? (STATUS[Math.round(value)] ?? "?") : measured(value, "", unit);
  return (
    <div class="heat" ref={place}>
      <Legend shade={shade} unit={unit} title={title} scale={scale} hasBroken={grid.cells.some(Number.isNaN)} hasGaps={grid.cells.includes(EMPTY)} isNarrow={width < 480} />
      <canvas
        ref={canvas}
        style={{ width: "100%", height: `${height}px` }}
        tabIndex={0}
        role="img"
        aria-label={`${panel.title}: ${grid.rows.length} rows by ${grid.xs.length} columns of ${title}. Arrow keys move, Enter selects.`}
        onMouseMove={(event) => setCursor(at(event))}
        onMouseLeave={() => setCursor(null)}
        onClick={(event) => pick(at(event))}
        onKeyDown={keyed}
      />
      {isPartly && <Finder name={y} pick={(name) => onPick(name, grid.xs[0] ?? 0)} />}
      <div class="heat-said" aria-live="polite">
        {cursor === null ? (
          <span class="muted">
            {counted(grid.xs.length, panel.x)} × {isPartly ? `the ${plain(grid.rows.length)} of ${counted(all ?? 0, y)} that differ most, the most different first` : counted(grid.rows.length, y)}
          </span>
        ) : (
          <span>
            <b>{label(grid.rows[cursor.row] ?? "")}</b> · {panel.x} {plain(grid.xs[cursor.x] ?? 0)} · <b>{said}</b>
          </span>
        )}
      </div>
    </div>
  );
}

/** A way to a row that is not among those that are drawn: by its whole name. */
function Finder({ name, pick }: { name: string; pick: (row: string) => void }) {
  const [wanted, setWanted] = useState("");
  const submit = (event: Event): void => {
    event.preventDefault();
    if (wanted !== "") pick(wanted);
  };
  return (
    <form class="finder" onSubmit={submit}>
      <label>
        another {name} <input type="search" placeholder="its whole name" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
      </label>
    </form>
  );
}

/** `10 clients`; of a column of somebody's own query the number alone. */
function counted(count: number, name: string): string {
  const isKnown = ["bucket", "client", "layer", "round", "step"].includes(name);
  return isKnown ? `${plain(count)} ${name}${count === 1 ? "" : "s"}` : plain(count);
}

interface Look {
  left: number;
  top: number;
  rowHeight: number;
  cellWidth: number;
  width: number;
  selected: string | undefined;
  accused: Set<string>;
  xName: string;
}

function draw(ctx: CanvasRenderingContext2D, grid: Grid, shade: Shading, look: Look): void {
  const { left, top, rowHeight, cellWidth } = look;
  const font = themeColour("font");
  const dash = themeColour("muted"); // once: it is slow to ask for
  const gap = rowHeight >= 9 && cellWidth >= 5 ? 1 : 0;
  ctx.clearRect(0, 0, look.width, ctx.canvas.height);
  ctx.fillStyle = themeColour("empty");
  ctx.fillRect(left, top, cellWidth * grid.xs.length, rowHeight * grid.rows.length);
  grid.rows.forEach((_, row) => {
    grid.xs.forEach((__, x) => {
      const value = grid.cells[row * grid.xs.length + x] as number;
      if (value === EMPTY) {
        // A dash: what was not measured is not a zero.
        const long = Math.min(5, cellWidth - 1);
        ctx.fillStyle = dash;
        if (gap === 1) ctx.fillRect(left + (x + 0.5) * cellWidth - long / 2, top + (row + 0.5) * rowHeight - 0.5, long, 1);
        return;
      }
      ctx.fillStyle = shade.colour(value);
      ctx.fillRect(left + x * cellWidth, top + row * rowHeight, Math.max(0.6, cellWidth - gap), rowHeight - gap);
    });
  });
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  const every = Math.ceil(12 / rowHeight);
  grid.rows.forEach((name, row) => {
    const isAccused = look.accused.has(name);
    const isSelected = name === look.selected;
    if (row % every !== 0 && !isAccused && !isSelected) return;
    ctx.font = `${isAccused || isSelected ? "600 " : ""}11px ${font}`;
    ctx.fillStyle = isAccused ? themeColour("error") : themeColour(isSelected ? "ink" : "muted");
    ctx.fillText(shortened(ctx, label(name), left - 12), left - 7, top + (row + 0.5) * rowHeight);
    if (isSelected) {
      ctx.strokeStyle = themeColour("ink");
      ctx.lineWidth = 1.5;
      ctx.strokeRect(left - 1, top + row * rowHeight - 1, cellWidth * grid.xs.length + 1, rowHeight + 1);
    }
  });
  ctx.textAlign = "center";
  ctx.font = `11px ${font}`;
  ctx.fillStyle = themeColour("muted");
  const step = Math.max(1, Math.ceil(grid.xs.length / Math.max(2, Math.floor((look.width - left) / 64))));
  const bottom = top + grid.rows.length * rowHeight;
  grid.xs.forEach((value, x) => {
    if (x % step === 0) ctx.fillText(plain(value), left + (x + 0.5) * cellWidth, bottom + 11);
  });
  ctx.textAlign = "right";
  ctx.fillStyle = faded(themeColour("muted"), 0.9);
  ctx.fillText(look.xName, look.width - 8, bottom + 24);
}

function shortened(ctx: CanvasRenderingContext2D, text: string, width: number): string {
  if (ctx.measureText(text).width <= width) return text;
  let kept = text.length;
  while (kept > 3 && ctx.measureText(`…${text.slice(-kept)}`).width > width) kept -= 1;
  return `…${text.slice(-kept)}`;
}

interface Legended {
  shade: Shading;
  unit: string;
  title: string;
  scale: Scale;
  hasBroken: boolean;
  hasGaps: boolean;
  isNarrow: boolean;
}

function Legend({ shade, unit, title, scale, hasBroken, hasGaps, isNarrow }: Legended) {
  if (shade.isStepped) {
    return (
      <div class="legend-steps">
        {STATUS.map((name, index) => (
          <span key={name}>
            <i style={{ background: shade.stops[index] }} />
            {name}
          </span>
        ))}
      </div>
    );
  }
  return (
    <div class="legend-bar">
      {hasBroken && (
        <span class="legend-steps">
          <span>
            <i style={{ background: BROKEN }} />
            NaN or infinite
          </span>
        </span>
      )}
      <span class="muted">
        {[title, scale === "log" && shade.ticks.length > 0 ? "logarithmic" : "", hasGaps ? "– not measured" : ""].filter((part) => part !== "").join(", ")}
      </span>
      {shade.ticks.length > 0 && <div>
        <i style={{ background: `linear-gradient(to right, ${shade.stops.join(",")})` }} />
        <p>
          {shade.ticks.filter((_, place, { length }) => !isNarrow || (2 * place) % (length - 1) === 0).map((tick) => (
            <span key={tick} style={{ left: `${shade.place(tick) * 100}%` }}>
              {short(Number(tick.toPrecision(2)), "", unit)}
            </span>
          ))}
        </p>
      </div>}
    </div>
  );
}
