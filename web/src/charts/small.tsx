// Bars, tiles, sparklines and tables.
import { useMemo, useState } from "preact/hooks";
import { phaseColour, seriesColour } from "../colour";
import { useAround } from "../context";
import { ago, cell, heading, label, measured, moment, share } from "../format";
import { column, number, type Cell, type Columns, type Evidence, type Panel } from "../model";

export function Bars({ panel, columns, onPick }: { panel: Panel; columns: Columns; onPick?: ((name: string) => void) | undefined }) {
  const values = column(columns, panel.x).map((value) => number(value) ?? 0);
  const names = column(columns, panel.y[0] ?? "").map(String);
  const groups = panel.by === "" ? names.map(() => "") : column(columns, panel.by).map(String);
  const distinct = [...new Set(groups)].sort();
  const most = Math.max(...values, 1e-300);
  const named = `${Math.min(30, Math.max(...names.map((name) => name.length), 3)) + 1}ch`;
  const colour = (group: string): string => (distinct.length > 1 ? phaseColour(group, distinct.indexOf(group)) : seriesColour(0));
  return (
    <div class="bars" style={{ "--named": named }}>
      {distinct.length > 1 && (
        <div class="legend-steps">
          {distinct.map((group) => (
            <span key={group}>
              <i style={{ background: colour(group) }} />
              {group}
            </span>
          ))}
        </div>
      )}
      {names.map((name, row) => {
        const bar = (
          <>
            <span class="bar-name" title={name}>
              {label(name)}
            </span>
            <span class="bar-track">
              <i style={{ width: `${((values[row] ?? 0) / most) * 100}%`, background: colour(groups[row] ?? "") }} />
            </span>
            <span class="bar-value">{measured(values[row] ?? 0, panel.x, panel.unit)}</span>
          </>
        );
        const key = `${name}/${groups[row]}`;
        return onPick ? (
          <button type="button" class="bar" key={key} onClick={() => onPick(name)}>
            {bar}
          </button>
        ) : (
          <div class="bar" key={key}>
            {bar}
          </div>
        );
      })}
    </div>
  );
}

const TITLES: Record<string, string> = {
  rows_stored: "rows stored",
  rows_missing: "rows missing",
  overhead_share: "overhead",
  size_bytes: "size on disk",
  started_ns: "started",
  duration_ns: "duration",
};

/** How long ago; in a report, which is read later, at what time. */
function useWhen(): (ns: number) => string {
  return useAround().source.isReport ? moment : ago;
}

export function Tiles({ columns }: { columns: Columns }) {
  const tiles = columns.names
    .map((name, index) => ({ name, value: columns.values[index]?.[0] ?? null }))
    .filter(({ name, value }) => value !== null && name !== "overhead_budget" && !(value === 0 && ["clients", "rounds"].includes(name)));
  const budget = number(column(columns, "overhead_budget")[0]);
  const isOdd = (name: string, value: Cell): boolean => (name === "rows_missing" && number(value) !== 0) || (name === "overhead_share" && budget !== null && (number(value) ?? 0) > budget);
  const when = useWhen();
  return (
    <dl class="tiles">
      {tiles.map(({ name, value }) => (
        <div key={name} class={isOdd(name, value) ? "is-odd" : ""}>
          <dt title={name === "started_ns" ? cell(value, name) : undefined}>{TITLES[name] ?? heading(name)}</dt>
          <dd>{name === "state" ? <State state={String(value)} /> : name === "started_ns" ? when(number(value) ?? 0) : cell(value, name)}{name === "overhead_share" && isOdd(name, value) && <small>above the budget of {share(budget ?? 0)}</small>}</dd>
        </div>
      ))}
    </dl>
  );
}

export function State({ state }: { state: string }) {
  return <span class={`state is-${state}`}>{state}</span>;
}

const SHOWN = 100;

interface Tabled {
  columns: Columns;
  /** What it is a table of, for those who hear it. */
  title: string;
  raw?: boolean;
  selected?: string | undefined;
  selects?: string | undefined;
  /** Whom findings accuse: they come first, in red. */
  accused?: Set<string> | undefined;
  onPick?: ((value: string) => void) | undefined;
}

export function DataTable({ columns, title, raw = false, selected, selects, accused, onPick }: Tabled) {
  const when = useWhen();
  const [order, setOrder] = useState<{ index: number; isDown: boolean } | null>(null);
  const [shown, setShown] = useState(SHOWN);
  const isNumeric = columns.types.map((type, index) => !/_ns$/.test(columns.names[index] ?? "") && /INT|DOUBLE|FLOAT|DECIMAL/.test(type) && !/[[(]/.test(type.replace(/DECIMAL\(.*\)/, "")));
  const rows = useMemo(() => {
    const numbers = Array.from({ length: columns.rows }, (_, row) => row);
    const values = order === null ? undefined : columns.values[order.index];
    const names = columns.values[columns.names.indexOf(selects ?? "")];
    if (order === null && accused !== undefined && names !== undefined) {
      numbers.sort((a, b) => Number(accused.has(String(names[b]))) - Number(accused.has(String(names[a]))));
    }
    if (order !== null && values !== undefined) {
      numbers.sort((a, b) => rank(values[a]) - rank(values[b]) || compare(values[a], values[b]) * (order.isDown ? -1 : 1));
    }
    return numbers;
  }, [columns, order, accused?.size]);
  const kept = columns.names.map((_, index) => raw || columns.rows === 0 || columns.values[index]?.some((value) => value !== null));
  const selecting = columns.names.indexOf(selects ?? "");
  const text = (value: Cell | undefined, name: string): string => {
    if (raw) return value === null ? "NULL" : typeof value === "object" ? JSON.stringify(value) : String(value);
    if (name === "last_step_ns" && value !== null) return when(number(value) ?? 0);
    return cell(value, name);
  };
  return (
    <div class="table-frame" tabIndex={0} role="region" aria-label={`Table: ${title}`}>
      <table>
        <thead>
          <tr>
            {columns.names.map(
              (name, index) =>
                kept[index] && (
                  <th key={name} class={isNumeric[index] ? "is-number" : ""} aria-sort={order?.index === index ? (order.isDown ? "descending" : "ascending") : "none"}>
                    <button type="button" onClick={() => setOrder({ index, isDown: order?.index === index ? !order.isDown : isNumeric[index] === true })}>
                      {raw ? name : name === "last_step_ns" ? "last step" : heading(name)}
                      {order?.index === index && (order.isDown ? " ↓" : " ↑")}
                    </button>
                  </th>
                ),
            )}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map((row) => {
            const mine = selecting < 0 ? undefined : String(columns.values[selecting]?.[row]);
            return (
              <tr key={row} class={`${mine !== undefined && mine === selected ? "is-selected" : ""}${mine !== undefined && accused?.has(mine) ? " is-accused" : ""}`}>
                {columns.names.map((name, index) => {
                  if (!kept[index]) return null;
                  const value = columns.values[index]?.[row];
                  const said = text(value, name);
                  return (
                    <td key={name} class={isNumeric[index] ? "is-number" : ""} title={said.length > 40 ? said : undefined}>
                      {index === selecting && onPick && mine !== undefined ? (
                        <button type="button" class="link" onClick={() => onPick(mine)}>
                          {said}
                        </button>
                      ) : name === "state" && !raw ? (
                        <State state={said} />
                      ) : (
                        said
                      )}
                    </td>
                  );
                })}
              </tr>
            );
          })}
        </tbody>
      </table>
      {columns.rows === 0 && <p class="nothing">no rows</p>}
      {rows.length > shown && (
        <button type="button" class="more" onClick={() => setShown(shown + 500)}>
          {rows.length - shown} more rows
        </button>
      )}
    </div>
  );
}

/** Values in order come first, then what is not a number, then what is not known, whatever the direction. */
function rank(value: Cell | undefined): number {
  if (value === null || value === undefined) return 2;
  return Number.isNaN(number(value)) ? 1 : 0;
}

function compare(a: Cell | undefined, b: Cell | undefined): number {
  if (a === b || rank(a) > 0) return 0;
  const [left, right] = [number(a ?? null), number(b ?? null)];
  if (left !== null && right !== null) return left - right;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Two small curves in one frame: a subject and what it is compared with. */
export function Spark({ series, others, names }: Pick<Evidence, "series" | "others" | "names">) {
  const lines = [others, series].map((one) => one.map((value) => number(value)));
  const finite = lines.flat().filter((value): value is number => value !== null && Number.isFinite(value));
  if (finite.length === 0) return null;
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const place = (index: number, count: number): number => (index / Math.max(1, count - 1)) * 296 + 2;
  const path = (values: (number | null)[]): string => {
    let isBegun = false;
    return values
      .map((value, index) => {
        const isPoint = value !== null && Number.isFinite(value);
        const command = isBegun ? "L" : "M";
        isBegun = isPoint; // a gap, and a new beginning after it
        if (!isPoint) return "";
        const x = place(index, values.length);
        const y = 46 - ((value - low) / (high - low || 1)) * 42;
        return `${command}${x.toFixed(1)} ${y.toFixed(1)}h0`; // a point alone is a dot
      })
      .join("");
  };
  const known = (values: Cell[]): Cell[] => (others.length > 0 ? values.filter((value) => Number.isFinite(number(value))) : values); // a gap beside others
  const [first, last] = [(values: Cell[]): string => cell(known(values).at(0), ""), (values: Cell[]): string => cell(known(values).at(-1), "")];
  return (
    <figure class="spark">
      <svg viewBox="0 0 300 50" preserveAspectRatio="none" role="img" aria-label={`${names[0]} ends at ${last(series)}, ${names[1]} at ${last(others)}`}>
        {others.length > 1 && <path d={path(lines[0] ?? [])} class="others" />}
        <path d={path(lines[1] ?? [])} class="subject" />
        {others.length === 0 && lines[1]?.map((value, index) => Number.isFinite(value) || <path key={index} d={`M${place(index, series.length)} 4V46`} class="broken" />)}
      </svg>
      <figcaption>
        <span class="subject">
          {names[0]} {first(series)} → {last(series)}
        </span>
        {others.length > 1 && (
          <span class="others">
            {names[1]} {first(others)} → {last(others)}
          </span>
        )}
      </figcaption>
    </figure>
  );
}
