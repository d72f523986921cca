// Texts, images, tables and histograms that were logged, each with a slider over its steps.
import { useMemo, useState } from "preact/hooks";
import { Heat } from "../charts/heat";
import { useAround, usePanel } from "../context";
import { label, plain } from "../format";
import { column, number, type Columns, type Panel } from "../model";
import { Behind } from "../panel";
import type { Route } from "../route";

const MOST = 24;
const BUCKETS = 24;

export function Media({ route, version, like }: { route: Route; version: string; like: string }) {
  const { source } = useAround();
  const { answer } = usePanel(route.run, "media", {}, version);
  if (answer === null || answer.rows === 0 || source.isReport) return null;
  const [names, kinds, steps] = ["name", "kind", "steps"].map((name) => column(answer, name)) as Columns["values"];
  const rows = (names ?? []).map((name, row) => ({ name: String(name), kind: String(kinds?.[row]), steps: (steps?.[row] as number[] | null) ?? [] }));
  const shown = rows.filter((one) => one.name.toLowerCase().includes(like.toLowerCase())).slice(0, MOST);
  return (
    <>
      {shown.length > 0 && (
        <h2 class="divider is-wide">
          Texts, images, tables and histograms <span class="muted">{shown.length < rows.length ? `${shown.length} of ${rows.length}` : rows.length}</span>
        </h2>
      )}
      {shown.map((one) => (
        <section key={`${one.kind} ${one.name}`} class="card panel" aria-label={label(one.name)} data-media={one.name}>
          <header>
            <h3>{label(one.name)}</h3>
            <span class="muted">
              {one.kind}, {plain(one.steps.length)} {one.steps.length === 1 ? "step" : "steps"}
            </span>
          </header>
          {one.kind === "histogram" ? <Histograms run={route.run} name={one.name} version={version} /> : <Item run={route.run} {...one} version={version} />}
        </section>
      ))}
    </>
  );
}

function Item({ run, name, kind, steps, version }: { run: string; name: string; kind: string; steps: number[]; version: string }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const index = Math.min(chosen ?? steps.length - 1, steps.length - 1);
  const panel = usePanelNamed("media-item");
  const given = { name, kind, step: String(steps[index] ?? "") };
  const { answer } = usePanel(run, "media-item", given, chosen === null ? version : "");
  const content = answer === null ? "" : String(column(answer, "content")[0] ?? "");
  return (
    <>
      {steps.length > 1 && (
        <label class="stepper">
          step {plain(steps[index] ?? 0)}
          <input type="range" min="0" max={steps.length - 1} value={index} onInput={(event) => setChosen(Number(event.currentTarget.value))} />
        </label>
      )}
      {kind === "image" ? content !== "" && <img class="sample" src={`data:image/png;base64,${content}`} alt={`${label(name)} at step ${steps[index]}`} /> : kind === "table" ? <Table content={content} /> : <pre class="sample" tabIndex={0}>{content}</pre>}
      {answer !== null && <Behind run={run} panel={{ ...panel, title: label(name), chart: "table" }} given={given} sql={answer.sql} isCut={answer.is_cut} columns={answer} />}
    </>
  );
}

function usePanelNamed(name: string): Panel {
  return useAround().catalogue.panels.find((one) => one.name === name) as Panel;
}

function Table({ content }: { content: string }) {
  const found = useMemo(() => parsed(content) as { columns?: string[]; rows?: string[][]; all_rows?: number } | null, [content]);
  if (!Array.isArray(found?.columns) || !Array.isArray(found.rows)) return <pre class="sample" tabIndex={0}>{content}</pre>;
  return (
    <div class="table-frame" tabIndex={0}>
      <table>
        <thead>
          <tr>{found.columns.map((name, index) => <th key={index}>{label(String(name))}</th>)}</tr>
        </thead>
        <tbody>
          {found.rows.map((row, index) => (
            <tr key={index}>{row.map((cell, place) => <td key={place}>{String(cell)}</td>)}</tr>
          ))}
        </tbody>
      </table>
      {(found.all_rows ?? 0) > found.rows.length && <p class="note">the first {found.rows.length} of {found.all_rows} rows</p>}
    </div>
  );
}

/** Histograms over time as a map: steps across, values up, the darker the more. */
function Histograms({ run, name, version }: { run: string; name: string; version: string }) {
  const { theme } = useAround();
  const known = usePanelNamed("media-histograms");
  const { answer } = usePanel(run, known.name, { name }, version);
  const columns = useMemo(() => (answer === null ? null : mapOf(answer)), [answer]);
  if (answer === null || columns === null) return <div class="skeleton" />;
  if (columns.rows === 0) return <p class="nothing">Nothing finite.</p>;
  const panel: Panel = { ...known, title: label(name), chart: "heat", x: "step", y: ["bucket"] };
  return (
    <>
      <Heat panel={panel} columns={columns} scale="linear" unit="" title="share of values" findings={[]} theme={theme} onPick={() => undefined} />
      <Behind run={run} panel={panel} given={{ name }} sql={answer.sql} isCut={answer.is_cut} columns={columns} />
    </>
  );
}

/** Each histogram's counts, spread over buckets that are the same for all steps. */
function mapOf(answer: Columns): Columns {
  const steps = column(answer, "step");
  const found = column(answer, "content").map((text) => parsed(String(text)) as { low: number; high: number; counts: number[] } | null);
  const good = found.map((one, row) => ({ one, step: number(steps[row]) ?? 0 })).filter(({ one }) => one !== null && Array.isArray(one.counts) && Number.isFinite(one.low) && Number.isFinite(one.high));
  const low = Math.min(...good.map(({ one }) => one?.low ?? 0));
  const high = Math.max(...good.map(({ one }) => one?.high ?? 1));
  const width = (high - low) / BUCKETS || 1;
  const values: [number[], string[], number[], number[]] = [[], [], [], []];
  for (const { one, step } of good) {
    if (one === null) continue;
    const total = one.counts.reduce((sum, count) => sum + count, 0) || 1;
    const own = (one.high - one.low) / one.counts.length || 1;
    for (let bucket = BUCKETS - 1; bucket >= 0; bucket -= 1) {
      const [from, to] = [low + bucket * width, low + (bucket + 1) * width];
      let inside = 0;
      one.counts.forEach((count, place) => {
        const start = one.low + place * own;
        inside += count * Math.max(0, Math.min(to, start + own) - Math.max(from, start)) / own;
      });
      values[0].push(step);
      values[1].push(plain(Number(from.toPrecision(3))));
      values[2].push(inside / total);
      values[3].push(BUCKETS - bucket);
    }
  }
  return { sql: answer.sql, names: ["step", "bucket", "value", "place"], types: ["BIGINT", "VARCHAR", "DOUBLE", "BIGINT"], values, rows: values[0].length, is_cut: answer.is_cut };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
