// All runs of the directory as a workspace: a table that is sorted, filtered and grouped, and drawings over many runs.
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { csvOf, saveText } from "../charts/save";
import { State } from "../charts/small";
import { useAround, useLater, useRuns } from "../context";
import { StateMark } from "../findings";
import { ago, cell, counted, label, plain, setting } from "../format";
import { keep, kept } from "../kept";
import { number, type Given, type RunRow } from "../model";
import { Trouble } from "../panel";
import { address, go, parse, type Route } from "../route";
import { RunCurves } from "./curves";
import { LabelDialog } from "./labels";
import { axisName } from "./metrics";
import { columnsOf, columnTitle, differing, filterOf, firstColumns, groupsOf, sorted, tableOfRuns, titleOf, valueOf } from "./run_rows";
import { Sweep } from "./sweep";

const ROW_PX = 38;
const FEW = 12; // of so many runs, or so many that are ticked, a metric is drawn that nobody has chosen
const COLUMNS = "stethos-run-columns";

export function RunsPage({ route }: { route: Route }) {
  const { catalogue } = useAround();
  const { answer, complaint, again } = useRuns();
  useEffect(() => {
    if (answer?.some((row) => !row.is_known && row.error === undefined)) again();
  }, [answer]);
  const { q = "", sort = "", group = "", ticked = "" } = route.given;
  const usual = useMemo(() => firstColumns(answer ?? []), [answer]);
  const [columns, setColumns] = useColumns(route, usual);
  const set = useCallback((changes: Given): void => {
    const now = parse(location.hash);
    go({ ...now, given: { ...now.given, ...changes } }, true);
  }, []);
  const [sortKey, isDown] = sort.startsWith("-") ? [sort.slice(1), true] : [sort, false];
  const all = answer ?? [];
  const chosen = useMemo(() => new Set(ticked.split(",").filter((name) => name !== "")), [ticked]);
  const found = useMemo(() => all.filter((row) => (route.given.archived === "1" || !row.is_archived)).filter(filterOf(q)), [answer, q, route.given.archived]);
  const rows = useMemo(() => (sortKey === "" ? found : sorted(found, sortKey, isDown)), [found, sort]);
  const toggle = (name: string): void => {
    const next = new Set(chosen);
    if (!next.delete(name)) next.add(name);
    set({ ticked: [...next].join(",") });
  };
  const [editing, setEditing] = useState<RunRow | null>(null);
  const picked = useMemo(() => rows.filter((row) => chosen.has(row.run)), [rows, chosen]);
  const shown = useMemo(() => (picked.length > 0 ? picked : rows).filter((row) => row.is_known), [picked, rows]);
  const unordered = useMemo(() => found.filter((row) => row.is_known && (picked.length === 0 || chosen.has(row.run))), [found, chosen, picked.length === 0]);
  const groupable = useMemo(() => columnsOf(all).filter((key) => key.startsWith("config:") || ["tags", "state", "verdict", "host"].includes(key)), [answer]);
  const unread = all.filter((row) => row.is_known && row.is_measured === false).length;
  const mayEdit = catalogue.may?.includes("edit") ?? false;
  return (
    <>
      <section class="card is-wide runs" aria-labelledby="runs-title">
        <header>
          <h2 id="runs-title">Directory {catalogue.directory}</h2>
          <span class="muted" aria-live="polite">
            {answer !== null && `${unread > 0 ? `reading the metrics of ${plain(unread)} · ` : ""}${rows.length === all.length ? "" : `${plain(rows.length)} of `}${counted(all.length, "run")}`}
          </span>
        </header>
        <div class="run-tools">
          <label class="search">
            <span class="sr-only">Filter runs</span>
            <input type="search" placeholder="name, state:ended, verdict:NaN, tag:best, lr<0.01 …" value={q} onInput={(event) => set({ q: event.currentTarget.value })} />
          </label>
          <Picker all={all} rows={shown} columns={columns} usual={usual} setColumns={setColumns} />
          <label>
            group by{" "}
            <select value={group} onChange={(event) => set({ group: event.currentTarget.value })}>
              <option value="">nothing</option>
              {groupable.map((key) => (
                <option key={key} value={key}>{label(columnTitle(key))}</option>
              ))}
            </select>
          </label>
          <label>
            <input type="checkbox" checked={route.given.archived === "1"} onChange={(event) => set({ archived: event.currentTarget.checked ? "1" : "" })} /> archived too
          </label>
          <button type="button" class="button is-quiet" title="this table as a file" onClick={() => saveText(csvOf(tableOfRuns(picked.length > 0 ? picked : rows, columns)), "runs.csv", "text/csv")}>CSV</button>
          {picked.length >= 2 && (
            <a class="button" href={address({ page: "compare", run: "", given: { runs: picked.map((row) => row.run).join(",") } })}>
              Compare {picked.length}
            </a>
          )}
          {picked.length > 0 && <button type="button" class="button is-quiet" onClick={() => set({ ticked: "" })}>Untick</button>}
        </div>
        {complaint !== null && <Trouble complaint={complaint} />}
        {answer === null && complaint === null && <div class="skeleton" />}
        {answer !== null && answer.length === 0 && (
          <p class="nothing">
            No runs here yet. Record one: <code>stethos run train.py</code>, or try <code>stethos demo</code>.
          </p>
        )}
        {answer !== null && answer.length > 0 && rows.length === 0 && <p class="nothing">No run fits the filter.</p>}
        {rows.length > 0 && (
          <Rows rows={rows} columns={columns} sortKey={sortKey} isDown={isDown} chosen={chosen} toggle={toggle} edit={mayEdit ? setEditing : undefined} set={set} />
        )}
      </section>
      {editing !== null && <LabelDialog row={editing} close={() => { setEditing(null); again(); }} />}
      <Drawings given={route.given} inOrder={shown} rows={unordered} group={group} columns={columns} isFew={Math.min(all.length, picked.length || all.length) <= FEW} set={set} />
    </>
  );
}

/**
 * What is drawn of the runs below their table: a moment after it, so that sorting and typing need not wait.
 * The curves follow the order of the table, of which they draw the first; the sweep draws all, whatever the order.
 */
function Drawings({ given, inOrder, rows, group, columns, isFew, set }: { given: Given; inOrder: RunRow[]; rows: RunRow[]; group: string; columns: string[]; isFew: boolean; set: (changes: Given) => void }) {
  const { theme } = useAround();
  const isUnasked = !isFew && (given.metric ?? "") === ""; // nobody waits for these curves: typing and sorting go first
  const [first, all] = [useLater(inOrder, isUnasked ? 1000 : undefined), useLater(rows)];
  const { metric = "", smooth = "", log = "", x = "", sweep = "", result = "", across = "", colour = "" } = given;
  const zoom = given[`zoom-${axisName(x)}`] ?? "";
  const groups = useMemo(() => group !== "" && all.length > 0 && <Groups rows={all} by={group} columns={columns} />, [all, group, columns.join()]);
  const curves = useMemo(() => first.length > 1 && <RunCurves given={given} rows={first} group={group} isFew={isFew} set={set} />, [first, group, isFew, metric, smooth, log, x, zoom, theme]);
  const spread = useMemo(() => all.length > 2 && <Sweep rows={all} given={given} set={set} />, [all, sweep, result, across, colour, given.q, theme]);
  return <>{groups}{curves}{spread}</>;
}

/** The columns that are shown: from the address, else as this browser remembers them. */
function useColumns(route: Route, usual: string[]): [string[], (columns: string[]) => void] {
  const given = route.given.columns ?? kept(COLUMNS) ?? "";
  const columns = given === "" ? usual : given.split("|");
  return [
    columns,
    (picked) => {
      const next = picked.join() === usual.join() ? [] : picked; // what is usual follows the runs
      keep(COLUMNS, next.join("|"));
      go({ ...route, given: { ...route.given, columns: next.join("|") } }, true);
    },
  ];
}

function Picker({ all, rows, columns, usual, setColumns }: { all: RunRow[]; rows: RunRow[]; columns: string[]; usual: string[]; setColumns: (columns: string[]) => void }) {
  const [wanted, setWanted] = useState("");
  const [isOpen, setOpen] = useState(false);
  const known = isOpen ? columnsOf(all).filter((key) => columnTitle(key).toLowerCase().includes(wanted.toLowerCase())).slice(0, 200) : [];
  const toggle = (key: string): void => setColumns(columns.includes(key) ? columns.filter((one) => one !== key) : [...columns, key]);
  const first = (key: string): void => setColumns([key, ...columns.filter((one) => one !== key)]);
  return (
    <details class="column-picker" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary class="button is-quiet">Columns</summary>
      <div class="card">
        <input type="search" aria-label="Search columns" placeholder="search columns" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
        <p>
          <button type="button" class="button is-quiet" onClick={() => setColumns([...new Set([...columns, ...differing(rows)])])}>Add what differs</button>
          <button type="button" class="button is-quiet" onClick={() => setColumns(usual)}>Reset</button>
        </p>
        <ul class="plain">
          {known.map((key) => (
            <li key={key}>
              <label>
                <input type="checkbox" checked={columns.includes(key)} onChange={() => toggle(key)} /> {label(columnTitle(key))}
              </label>
              {columns.includes(key) && columns[0] !== key && <button type="button" class="link" title="pin as the first column" onClick={() => first(key)}>pin</button>}
            </li>
          ))}
        </ul>
      </div>
    </details>
  );
}

interface Listed {
  rows: RunRow[];
  columns: string[];
  sortKey: string;
  isDown: boolean;
  chosen: Set<string>;
  toggle: (name: string) => void;
  edit?: ((row: RunRow) => void) | undefined;
  set: (changes: Record<string, string>) => void;
}

/** The table; of many rows only those in sight are in the page. */
function Rows({ rows, columns, sortKey, isDown, chosen, toggle, edit, set }: Listed) {
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const isLong = rows.length > 80;
  const inSight = isLong ? Math.ceil(Math.max(900, innerHeight) / ROW_PX) : rows.length;
  const from = isLong ? Math.max(0, Math.min(rows.length - inSight, Math.floor(top / ROW_PX) - 6)) : 0;
  const shown = rows.slice(from, from + inSight + 12);
  const below = rows.length - from - shown.length;
  const numeric = useMemo(() => new Set(columns.filter((key) => areNumbers(rows, key))), [rows, columns.join()]);
  const heading = (key: string): preact.JSX.Element => {
    const isThis = sortKey === key;
    const next = !isThis ? `-${key}` : isDown ? key : "";
    return (
      <th key={key} class={isNumber(key) || numeric.has(key) ? "is-number" : ""} aria-sort={!isThis ? "none" : isDown ? "descending" : "ascending"}>
        <button type="button" onClick={() => set({ sort: next })}>
          {label(columnTitle(key))} {isThis ? (isDown ? "▾" : "▴") : ""}
        </button>
      </th>
    );
  };
  return (
    <div class={`table-frame${isLong ? " is-long" : ""}`} ref={frame} tabIndex={0} role="region" aria-label="Runs" onScroll={(event) => isLong && setTop(event.currentTarget.scrollTop)}>
      <table class="runs-table" aria-rowcount={rows.length}>
        <thead>
          <tr>
            <th><span class="sr-only">compare</span></th>
            {heading("run")}
            {edit !== undefined && <th><span class="sr-only">edit</span></th>}
            {columns.map(heading)}
          </tr>
        </thead>
        <tbody>
          {from > 0 && <tr class="filler" aria-hidden="true"><td colSpan={columns.length + 3} style={{ height: `${from * ROW_PX}px` }} /></tr>}
          {shown.map((row) => (
            <tr key={row.run} aria-busy={!row.is_known && row.error === undefined}>
              <td>
                <input type="checkbox" aria-label={`compare ${label(row.run)}`} checked={chosen.has(row.run)} onChange={() => toggle(row.run)} />
              </td>
              <td>
                <a class="run-name" href={address({ run: row.run, page: "overview", given: {} })} title={row.run}>
                  {label(titleOf(row))}
                </a>
              </td>
              {edit !== undefined && (
                <td class="edits">
                  <button type="button" aria-label={`edit ${label(row.run)}`} title="title, tags, notes, archive, delete" disabled={!row.is_known} onClick={() => edit(row)}>edit</button>
                </td>
              )}
              {columns.map((key) => <Value key={key} row={row} name={key} isRight={numeric.has(key)} />)}
            </tr>
          ))}
          {below > 0 && <tr class="filler" aria-hidden="true"><td colSpan={columns.length + 3} style={{ height: `${below * ROW_PX}px` }} /></tr>}
        </tbody>
      </table>
    </div>
  );
}

/** Whether a hyperparameter is a number in every run that has it. */
function areNumbers(rows: RunRow[], key: string): boolean {
  if (!key.startsWith("config:")) return false;
  const values = rows.map((row) => valueOf(row, key)).filter((value) => value !== null);
  return values.length > 0 && values.every((value) => typeof value === "number");
}

function isNumber(key: string): boolean {
  return key.startsWith("metric:") || ["last_round", "steps", "loss", "accuracy", "overhead_share", "duration_ms", "size_bytes"].includes(key);
}

function Value({ row, name, isRight }: { row: RunRow; name: string; isRight: boolean }) {
  const value = valueOf(row, name);
  if (name === "state") return <td>{row.state === undefined ? <span class="muted">{row.error ?? "…"}</span> : <State state={row.state} />}</td>;
  if (name === "verdict") return <td class="what" title={row.health?.first || undefined}><StateMark conclusion={row.health} />{row.health?.first && <span class="muted"> {label(row.health.first)}</span>}</td>;
  if (name === "tags") return <td>{(row.tags ?? []).map((tag) => <span class="tag" key={tag}>{label(tag)}</span>)}</td>;
  if (name === "started_ns") return <td title={cell(value, name)}>{number(value) === null ? "–" : ago(number(value) as number)}</td>;
  if (name.startsWith("config:")) {
    const { text, isShort } = setting(value);
    return <td class={isRight ? "is-number" : ""} title={isShort || typeof value === "string" ? String(value) : undefined}>{text}</td>;
  }
  const isBroken = isNumber(name) && !Number.isFinite(number(value) ?? 0);
  const text = cell(value, name.startsWith("metric:") ? "" : name);
  return <td class={`${isNumber(name) ? "is-number" : ""}${isBroken ? " is-broken" : ""}`} title={typeof value === "string" ? value : undefined}>{text}</td>;
}

/** Each group's number of runs, and the mean and spread of its results: loss, accuracy and the metrics of the table. */
function Groups({ rows, by, columns }: { rows: RunRow[]; by: string; columns: string[] }) {
  const keys = [...new Set(["loss", "accuracy", ...columns.filter((key) => key.startsWith("metric:"))])].filter((key) => rows.some((row) => number(valueOf(row, key)) !== null));
  const groups = [...groupsOf(rows, by)].slice(0, 200);
  const spread = (members: RunRow[], key: string): string => {
    const values = members.map((row) => number(valueOf(row, key))).filter((value): value is number => value !== null && Number.isFinite(value));
    if (values.length === 0) return "–";
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(1, values.length - 1));
    return values.length === 1 ? plain(mean) : `${plain(mean)} ± ${plain(Number(deviation.toPrecision(2)))}`;
  };
  return (
    <section class="card is-wide" aria-label="Groups" data-panel="groups">
      <header>
        <h2>By {label(columnTitle(by))}</h2>
      </header>
      <p class="note">Mean and standard deviation over the runs of each group.</p>
      <div class="table-frame" tabIndex={0}>
        <table>
          <thead>
            <tr><th>{label(columnTitle(by))}</th><th class="is-number">runs</th>{keys.map((key) => <th class="is-number" key={key}>{label(columnTitle(key))}</th>)}</tr>
          </thead>
          <tbody>
            {groups.map(([name, members]) => (
              <tr key={name}>
                <td>{label(name)}</td>
                <td class="is-number">{members.length}</td>
                {keys.map((key) => <td class="is-number" key={key}>{spread(members, key)}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
