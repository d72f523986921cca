// Any question: SQL over the tables of a run, as a table or drawn.
import { useEffect, useState } from "preact/hooks";
import { Asked, AskedFiles, KINDS, shapeOf } from "../charts/asked";
import { useAround } from "../context";
import { keep, kept } from "../kept";
import type { Columns } from "../model";
import { Segments, Trouble } from "../panel";
import { go, type Route } from "../route";
import { Complaint } from "../source";
import { SqlEditor } from "./editor";
import { SavePanel } from "./own";

const FIRST = "SELECT table_name, column_count FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal";
const EXAMPLES: [string, string][] = [
  ["loss by step", "SELECT step, loss FROM steps ORDER BY step LIMIT 2000"],
  ["clients by cosine", "SELECT client, median(cos_centre) AS cosine\nFROM updates WHERE layer IS NULL AND client IS NOT NULL\nGROUP BY client ORDER BY cosine"],
  ["slowest modules", "SELECT module, stage, avg(duration_ms) AS ms FROM modules GROUP BY ALL ORDER BY ms DESC LIMIT 20"],
  ["findings", "SELECT severity, title, first, confidence, next_step FROM findings"],
];
const HISTORY = "stethos-sql-history";
const MOST_PAST = 50;

/** The questions that were asked before in this browser, newest first. */
function past(): string[] {
  try {
    const found: unknown = JSON.parse(kept(HISTORY) ?? "[]");
    return Array.isArray(found) ? found.filter((one): one is string => typeof one === "string").slice(0, MOST_PAST) : [];
  } catch {
    return [];
  }
}

function remember(sql: string): string[] {
  const all = [sql, ...past().filter((one) => one !== sql)].slice(0, MOST_PAST);
  keep(HISTORY, JSON.stringify(all));
  return all;
}

export function SqlPage({ route }: { route: Route }) {
  const { source, catalogue } = useAround();
  const given = route.given.q ?? "";
  const [text, setText] = useState(given === "" ? (EXAMPLES[0]?.[1] ?? FIRST) : given);
  const [answer, setAnswer] = useState<Columns | null>(null);
  const [complaint, setComplaint] = useState<Complaint | null>(null);
  const [isAsking, setAsking] = useState(false);
  const [took, setTook] = useState(0);
  const [history, setHistory] = useState(past);

  const ask = async (sql: string): Promise<void> => {
    setAsking(true);
    const start = performance.now();
    try {
      setAnswer(await source.sql(route.run, sql));
      setComplaint(null);
      setHistory(remember(sql));
    } catch (error) {
      setComplaint(error instanceof Complaint ? error : new Complaint(String(error), "", 0));
      setAnswer(null);
    }
    setTook(performance.now() - start);
    setAsking(false);
  };
  useEffect(() => {
    if (given !== "") {
      setText(given);
      void ask(given);
    }
  }, [given, route.run]);
  const submit = (asked: string): void => {
    if (asked === given) void ask(asked);
    else go({ ...route, given: { ...route.given, q: asked } });
  };
  return (
    <div class="sql-page">
      <section class="card" aria-label="Question">
        <header>
          <h2>Ask in SQL</h2>
          <div class="choices">
            {EXAMPLES.map(([title, sql]) => (
              <button type="button" class="chip" key={title} onClick={() => go({ ...route, given: { q: sql } })}>
                {title}
              </button>
            ))}
          </div>
        </header>
        <SqlEditor text={text} setText={setText} submit={submit} tables={catalogue.tables} />
        <div class="asking">
          <button type="button" class="button" onClick={() => submit(text)} disabled={isAsking}>
            {isAsking ? "Asking …" : "Ask"}
          </button>
          {history.length > 0 && (
            <label>
              <span class="sr-only">Questions asked before</span>
              <select value="" onChange={(event) => go({ ...route, given: { q: event.currentTarget.value } })}>
                <option value="">history</option>
                {history.map((sql) => <option key={sql} value={sql}>{sql.replace(/\s+/g, " ").slice(0, 90)}</option>)}
              </select>
            </label>
          )}
          <span class="muted">Ctrl + Enter · DuckDB SQL · reads only · at most 10,000 rows and 15 s</span>
        </div>
        {complaint !== null && <Trouble complaint={complaint} />}
      </section>
      <aside class="card" aria-label="Tables">
        <h2>Tables</h2>
        {catalogue.tables.map((table) => (
          <details key={table.name}>
            <summary>
              {table.name} <small class="muted">per {table.per}</small>
            </summary>
            <p class="note">{table.doc}</p>
            <dl class="columns">
              {table.columns.map(([name, doc]) => (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{doc}</dd>
                </div>
              ))}
            </dl>
          </details>
        ))}
      </aside>
      {answer !== null && <Result route={route} answer={answer} took={took} />}
    </div>
  );
}

function Result({ route, answer, took }: { route: Route; answer: Columns; took: number }) {
  const kind = KINDS.find((one) => one === route.given.as) ?? "table";
  const shape = shapeOf(answer, kind, route.given);
  const set = (name: string, value: string): void => go({ ...route, given: { ...route.given, [name]: value } }, true);
  return (
    <section class="card panel is-result" aria-label="Result" data-panel="result">
      <header>
        <h2>
          {answer.rows.toLocaleString("en-US")} {answer.rows === 1 ? "row" : "rows"}
          <small class="muted">
            {" "}
            in {Math.round(took)} ms{answer.is_cut ? ", cut at 10,000" : ""}
          </small>
        </h2>
        <div class="choices">
          {kind !== "table" && (
            <>
              <Column title="x" value={shape.x} names={answer.names} set={(value) => set("x", value)} />
              <Column title={kind === "heat" ? "value" : "y"} value={shape.y} names={answer.names} set={(value) => set("y", value)} />
              {kind !== "bars" && <Column title={kind === "heat" ? "rows" : "by"} value={shape.by} names={["", ...answer.names]} set={(value) => set("by", value)} />}
            </>
          )}
          <Segments title="Show as" names={KINDS} chosen={kind} choose={(one) => go({ ...route, given: { q: route.given.q ?? "", as: one } }, true)} />
        </div>
      </header>
      <Asked title="Result" answer={answer} shape={shape} height={340} />
      <footer>
        <SavePanel panel={{ sql: route.given.q ?? "", chart: kind, x: kind === "table" ? "" : shape.x, y: kind === "table" ? "" : shape.y, by: kind === "table" || kind === "bars" ? "" : shape.by, note: "", view: "" }} />
        <AskedFiles title="result" answer={answer} shape={shape} />
      </footer>
    </section>
  );
}

function Column({ title, value, names, set }: { title: string; value: string; names: string[]; set: (value: string) => void }) {
  return (
    <label>
      {title}{" "}
      <select value={value} onChange={(event) => set(event.currentTarget.value)}>
        {names.map((name) => (
          <option key={name} value={name}>
            {name === "" ? "none" : name}
          </option>
        ))}
      </select>
    </label>
  );
}
