// Any question: SQL over the tables of a run, as a table or drawn.
import { useEffect, useRef, useState } from "preact/hooks";
import { Heat } from "../charts/heat";
import { curvesOf, Plot } from "../charts/plot";
import { Bars, DataTable } from "../charts/small";
import { useAround } from "../context";
import type { Columns, Panel } from "../model";
import { Trouble } from "../panel";
import { go, type Route } from "../route";
import { Complaint } from "../source";

const FIRST = "SELECT table_name, column_count FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal";
const EXAMPLES: [string, string][] = [
  ["loss by step", "SELECT step, loss FROM steps ORDER BY step LIMIT 2000"],
  ["clients by cosine", "SELECT client, median(cos_centre) AS cosine\nFROM updates WHERE layer IS NULL AND client IS NOT NULL\nGROUP BY client ORDER BY cosine"],
  ["slowest modules", "SELECT module, stage, avg(duration_ms) AS ms FROM modules GROUP BY ALL ORDER BY ms DESC LIMIT 20"],
  ["findings", "SELECT severity, title, first, confidence, next_step FROM findings"],
];
const KINDS = ["table", "line", "bars", "heat"];

export function SqlPage({ route }: { route: Route }) {
  const { source, catalogue } = useAround();
  const given = route.given.q ?? "";
  const [text, setText] = useState(given === "" ? (EXAMPLES[0]?.[1] ?? FIRST) : given);
  const [answer, setAnswer] = useState<Columns | null>(null);
  const [complaint, setComplaint] = useState<Complaint | null>(null);
  const [isAsking, setAsking] = useState(false);
  const [took, setTook] = useState(0);
  const editor = useRef<HTMLTextAreaElement>(null);

  const ask = async (sql: string): Promise<void> => {
    setAsking(true);
    const start = performance.now();
    try {
      setAnswer(await source.sql(route.run, sql));
      setComplaint(null);
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
  const submit = (): void => {
    const asked = editor.current?.value ?? text; // what stands in the editor, also where it has not been drawn yet
    if (asked === given) void ask(asked);
    else go({ ...route, given: { ...route.given, q: asked } });
  };
  const keyed = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    }
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
        <textarea
          ref={editor} class="editor" spellcheck={false} aria-label="SQL" rows={Math.min(16, Math.max(5, text.split("\n").length + 1))}
          value={text} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={keyed}
        />
        <div class="asking">
          <button type="button" class="button" onClick={submit} disabled={isAsking}>
            {isAsking ? "Asking …" : "Ask"}
          </button>
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
  const { theme } = useAround();
  const numeric = answer.names.filter((_, index) => /INT|DOUBLE|FLOAT|DECIMAL/.test(answer.types[index] ?? ""));
  const other = answer.names.filter((name) => !numeric.includes(name));
  const kind = KINDS.includes(route.given.as ?? "") ? (route.given.as as string) : "table";
  const x = route.given.x ?? (kind === "line" || kind === "heat" ? numeric[0] : (numeric.at(-1) ?? "")) ?? "";
  const y = route.given.y ?? (kind === "line" ? (numeric.find((name) => name !== x) ?? "") : kind === "heat" ? (numeric.filter((name) => name !== x)[0] ?? "") : (other[0] ?? answer.names[0] ?? ""));
  const by = route.given.by ?? (kind === "line" || kind === "heat" ? (other[0] ?? "") : "");
  const set = (name: string, value: string): void => go({ ...route, given: { ...route.given, [name]: value } }, true);
  const panel: Panel = {
    name: "asked", page: "sql", title: "Result", chart: "line", note: "", x, y: [y], by, band: [], scale: "linear", unit: "",
    parameters: [], selects: {}, marks: "", wide: true, optional: false, comparable: false,
  };
  return (
    <section class="card is-result" aria-label="Result" data-panel="result">
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
              <Column title="x" value={x} names={answer.names} set={(value) => set("x", value)} />
              <Column title={kind === "heat" ? "value" : "y"} value={y} names={answer.names} set={(value) => set("y", value)} />
              {kind !== "bars" && <Column title={kind === "heat" ? "rows" : "by"} value={by} names={["", ...answer.names]} set={(value) => set("by", value)} />}
            </>
          )}
          <div class="segments" role="radiogroup" aria-label="Show as">
            {KINDS.map((one) => (
              <button type="button" role="radio" aria-checked={kind === one} key={one} onClick={() => go({ ...route, given: { q: route.given.q ?? "", as: one } }, true)}>
                {one}
              </button>
            ))}
          </div>
        </div>
      </header>
      {answer.rows === 0 ? (
        <p class="nothing">The query has no rows.</p>
      ) : kind === "table" ? (
        <DataTable columns={answer} raw />
      ) : kind === "line" ? (
        <Plot panel={panel} data={curvesOf(panel, answer)} theme={theme} height={340} label="The query's result" />
      ) : kind === "bars" ? (
        <Bars panel={{ ...panel, x, y: [y] }} columns={{ ...answer, values: answer.values.map((one) => one.slice(0, 60)) }} />
      ) : (
        <Heat
          panel={{ ...panel, y: [by] }} scale="linear" unit="" title={y} findings={[]} theme={theme} onPick={() => undefined}
          columns={{ ...answer, names: answer.names.map((name) => (name === y ? "value" : name)) }}
        />
      )}
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
