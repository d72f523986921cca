// Several runs side by side: the verdict, the numbers it stands on, the same curves, and what the runs were started with.
import { useState } from "preact/hooks";
import { seriesColour } from "../colour";
import { courseOf, useAround, useAsked, useRuns } from "../context";
import { StateMark } from "../findings";
import { cell, measured, plain, setting } from "../format";
import type { Cell, Comparison, Pair, Panel, Quantity, RunRow } from "../model";
import { JsonLink, Trouble } from "../panel";
import { go, type Route } from "../route";
import { compareAddress } from "../source";
import { MetricsTogether, Together } from "./together";

const MOST = 8;
const LISTED = 40;
const FACTS: [keyof RunRow, string][] = [
  ["state", "state"],
  ["last_round", "rounds"],
  ["steps", "steps"],
  ["loss", "last loss"],
  ["accuracy", "last accuracy"],
  ["overhead_share", "overhead"],
  ["rows_stored", "rows stored"],
  ["rows_missing", "rows missing"],
  ["size_bytes", "size on disk"],
  ["started_ns", "started"],
  ["command", "command"],
];

export function ComparePage({ route }: { route: Route }) {
  const { catalogue } = useAround();
  const { answer, complaint } = useRuns();
  const known = (answer ?? []).map((row) => row.run);
  const given = (route.given.runs ?? "").split(",").filter((name) => known.includes(name));
  const chosen = (given.length > 0 ? given : known.slice(0, 2)).slice(0, MOST);
  const [wanted, setWanted] = useState("");
  const listed = [...chosen, ...known.filter((name) => !chosen.includes(name) && name.toLowerCase().includes(wanted.toLowerCase()))];
  const comparable = catalogue.panels.filter((panel) => panel.comparable);
  const toggle = (name: string): void => {
    const next = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name];
    go({ ...route, given: { ...route.given, runs: next.join(",") } });
  };
  const rows = chosen.map((name) => answer?.find((row) => row.run === name)).filter((row) => row !== undefined);
  const first = rows.some((row) => row.last_round != null) ? ["round-accuracy", "round-loss"] : ["step-loss"];
  const isFirst = (panel: Panel): boolean => first.includes(panel.name);
  return (
    <div class="grid">
      <section class="card is-wide">
        <header>
          <h2>Compare runs</h2>
        </header>
        <p class="note">All other runs are compared with the first one you chose.</p>
        {complaint !== null && <Trouble complaint={complaint} />}
        {answer === null && complaint === null && <div class="skeleton" />}
        {given.length > MOST && (
          <p class="note">The first {MOST} of {given.length} runs are compared. The curves, groups and sweeps under Runs take all of them.</p>
        )}
        {known.length > LISTED && (
          <label class="search">
            <span class="sr-only">Search runs</span>
            <input type="search" placeholder={`search ${plain(known.length)} runs`} value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
          </label>
        )}
        <div class="chosen-runs" role="group" aria-label="Runs to compare">
          {listed.slice(0, LISTED).map((name) => (
            <label key={name} class={chosen.includes(name) ? "is-on" : ""}>
              <input type="checkbox" checked={chosen.includes(name)} onChange={() => toggle(name)} />
              <i style={{ background: chosen.includes(name) ? seriesColour(chosen.indexOf(name)) : "transparent" }} />
              {name}
            </label>
          ))}
          {listed.length > LISTED && <span class="muted">and {plain(listed.length - LISTED)} more: search for them</span>}
        </div>
        {answer !== null && known.length < 2 && <p class="nothing">You need two runs to compare. Record another one.</p>}
        {answer !== null && known.length >= 2 && chosen.length < 2 && <p class="nothing">Choose another one to compare it with.</p>}
      </section>
      {chosen.length >= 2 && <Judged key={chosen.join("/")} route={route} rows={rows} runs={chosen} panels={comparable.filter(isFirst)} />}
      {chosen.length >= 2 && <h2 class="divider is-wide">Curves</h2>}
      {chosen.length >= 2 && comparable.filter((panel) => !isFirst(panel)).map((panel) => <Together key={panel.name} route={route} panel={panel} runs={chosen} version={courseOf(rows)} />)}
      {chosen.length >= 2 && <MetricsTogether key={chosen.join("/")} route={route} runs={chosen} version={courseOf(rows)} />}
      {rows.length > 0 && <Facts rows={rows} />}
    </div>
  );
}

/** What `stethos compare` says: a verdict for each further run, the curves, the quantities, the settings. */
function Judged({ route, rows, runs, panels }: { route: Route; rows: RunRow[]; runs: string[]; panels: Panel[] }) {
  const { source } = useAround();
  const { answer, complaint } = useAsked(() => source.compare(runs), runs.join("/"), rows.map((row) => row.state).join()); // anew when one has ended
  if (complaint !== null) return <section class="card is-wide"><Trouble complaint={complaint} /></section>;
  if (answer === null) return <section class="card is-wide"><div class="skeleton" /></section>;
  return (
    <>
      {answer.pairs.map((pair) => (
        <Sentence key={pair.second} pair={pair} />
      ))}
      {panels.map((panel) => (
        <Together key={panel.name} route={route} panel={panel} runs={runs} version={courseOf(rows)} isWide={panel.name === "step-loss"} />
      ))}
      <Quantities comparison={answer} />
      <Settings comparison={answer} />
    </>
  );
}

function Sentence({ pair }: { pair: Pair }) {
  const words = pair.quantities.map((one) => one.verdict);
  const mood = words.includes("worse") ? "is-warning" : words.includes("better") ? "is-ok" : "";
  return (
    <section class={`verdict card is-wide ${mood}`} aria-label={`${pair.second} against ${pair.first}`} data-panel="verdict">
      <div>
        <p class="versus">
          <b>{pair.second}</b> against <b>{pair.first}</b>
        </p>
        <p class="verdict-word">{sentence(pair.verdict)}</p>
        <p class="verdict-more">
          <span>they differ in {pair.cause}</span>
        </p>
        {pair.new_findings.map((text) => (
          <p class="only" key={text}>
            <b>only in {pair.second}</b> {text}
          </p>
        ))}
        {pair.gone_findings.map((text) => (
          <p class="only" key={text}>
            <b>only in {pair.first}</b> {text}
          </p>
        ))}
        {pair.notes.map((text) => (
          <p class="note" key={text}>
            {sentence(text)}.
          </p>
        ))}
      </div>
    </section>
  );
}

function Quantities({ comparison }: { comparison: Comparison }) {
  const { pairs, runs } = comparison;
  const [first] = pairs;
  const names = [...new Set(pairs.flatMap((pair) => pair.quantities.map((one) => one.quantity)))];
  if (first === undefined || names.length === 0) return null;
  const of = (pair: Pair, name: string): Quantity | undefined => pair.quantities.find((one) => one.quantity === name);
  const judged = pairs.flatMap((pair) => pair.quantities.filter((one) => one.verdict !== "not judged"));
  const widest = Math.max(0.01, ...judged.map(reach));
  return (
    <section class="card panel is-wide" aria-label="Results" data-panel="quantities">
      <header>
        <h2>Results</h2>
      </header>
      <p class="note">Medians, and the relative change with its 95 % interval; the bar shows it around “no change”.</p>
      <div class="table-frame">
        <table class="quantities">
          <thead>
            <tr>
              <th>quantity</th>
              <th class="is-number">{first.first}</th>
              {pairs.map((pair) => (
                <>
                  <th key={pair.second} class="is-number">{pair.second}</th>
                  <th colSpan={2}>change</th>
                </>
              ))}
            </tr>
          </thead>
          <tbody>
            {names.map((name) => {
              const base = pairs.map((pair) => of(pair, name)).find((one) => one !== undefined);
              return (
                <tr key={name}>
                  <th>{name}</th>
                  <td class="is-number">{value(base?.first, base)}</td>
                  {pairs.map((pair) => (
                    <Change key={pair.second} quantity={of(pair, name)} widest={widest} />
                  ))}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <footer>
        <JsonLink path={compareAddress(runs)} />
        <code class="muted">$ stethos compare {runs.join(" ")}</code>
      </footer>
    </section>
  );
}

function Change({ quantity, widest }: { quantity: Quantity | undefined; widest: number }) {
  if (quantity === undefined) return <td colSpan={3} class="muted">–</td>;
  const { change, low, high, verdict } = quantity;
  const at = (part: number): number => 50 + (Math.max(-1, Math.min(1, part / widest)) * 100) / 2;
  const ends = low === null || high === null ? null : [at(low), at(high)];
  return (
    <>
      <td class="is-number">{value(quantity.second, quantity)}</td>
      <td class="change">
        <b>{change === null ? "–" : percent(change)}</b>
        {low !== null && high !== null && <small>{percent(low)} to {percent(high)}</small>}
        <span class="interval" aria-hidden="true">
          {ends !== null && <i class={`is-${verdict.split(" ")[0]}`} style={{ left: `${ends[0]}%`, width: `${Math.max(1.5, (ends[1] ?? 0) - (ends[0] ?? 0))}%` }} />}
          {change !== null && <u class={`is-${verdict.split(" ")[0]}`} style={{ left: `${at(change)}%` }} />}
        </span>
      </td>
      <td>
        <span class={`word is-${verdict.split(" ")[0]}`}>{verdict}</span>
      </td>
    </>
  );
}

function reach({ change, low, high }: Quantity): number {
  return Math.min(1, Math.max(...[change, low, high].map((one) => Math.abs(one ?? 0))));
}

/** A relative change: in percent, or where it is tenfold and more, how many times as much. */
function percent(part: number): string {
  if (part >= 9) return `${plain(Number((1 + part).toPrecision(3)))}×`;
  const sign = part > 0 ? "+" : "";
  return `${sign}${plain(Number((part * 100).toPrecision(Math.abs(part) >= 0.1 ? 3 : 2)))} %`;
}

function value(number: number | null | undefined, quantity: Quantity | undefined): string {
  if (number === null && quantity?.quantity.startsWith("final ") && ["worse", "better"].includes(quantity.verdict)) return "not finite";
  if (number === null || number === undefined || quantity === undefined) return "–";
  return measured(number, quantity.quantity.endsWith("accuracy") ? "accuracy" : "", quantity.unit);
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function Settings({ comparison }: { comparison: Comparison }) {
  const [isOpen, setOpen] = useState(false);
  const { settings, runs } = comparison;
  const same = settings.filter((one) => !one.differs).length;
  const shown = settings.filter((one) => one.differs || isOpen);
  return (
    <section class="card panel is-wide" aria-label="Settings" data-panel="settings">
      <header>
        <h2>Settings</h2>
      </header>
      {shown.length === 0 && <p class="nothing">No recorded setting differs.</p>}
      {shown.length > 0 && (
        <div class="table-frame">
          <table class="settings">
            <thead>
              <tr>
                <th>setting</th>
                {runs.map((run) => (
                  <th key={run}>{run}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((one) => (
                <tr key={one.name} class={one.differs ? "differs" : ""}>
                  <th>{one.name}</th>
                  {one.values.map((value, index) => (
                    <td key={runs[index]}>{isFlag(one.values) ? (value === null ? "not given" : "given") : setting(value).text}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {same > 0 && (
        <footer>
          <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            {isOpen ? "only what differs" : `and ${same} more that are the same`}
          </button>
        </footer>
      )}
    </section>
  );
}

/** Whether a setting is an option of the command that has no value: it is there or not. */
function isFlag(values: Cell[]): boolean {
  return values.every((value) => value === null || value === "");
}

function Facts({ rows }: { rows: RunRow[] }) {
  return (
    <section class="card is-wide" aria-label="The runs">
      <header>
        <h2>The runs</h2>
      </header>
      <div class="table-frame">
        <table class="facts">
          <thead>
            <tr>
              <th>quantity</th>
              {rows.map((row) => (
                <th key={row.run}>{row.run}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            <tr>
              <th>what is wrong</th>
              {rows.map((row) => (
                <td key={row.run}>
                  <StateMark conclusion={row.health} />
                </td>
              ))}
            </tr>
            {FACTS.filter(([key]) => rows.some((row) => row[key] != null)).map(([key, title]) => (
              <tr key={key}>
                <th>{title}</th>
                {rows.map((row) => (
                  <td key={row.run}>{cell((row[key] ?? null) as string | number | null, key)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
