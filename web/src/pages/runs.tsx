// All runs of the directory.
import { useEffect, useState } from "preact/hooks";
import { State } from "../charts/small";
import { useAround, useAsked } from "../context";
import { ago, cell, duration, share } from "../format";
import { number, type Health, type RunRow } from "../model";
import { Trouble } from "../panel";
import { address } from "../route";

const AGAIN_MS = 2500;

export function RunsPage() {
  const { source, catalogue } = useAround();
  const [turn, setTurn] = useState(0);
  const { answer, complaint } = useAsked(() => source.runs(), "runs", String(turn));
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setTurn((before) => before + 1), AGAIN_MS);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => {
    if (answer?.some((row) => !row.is_known)) setTurn((before) => before + 1);
  }, [answer]);
  const [wanted, setWanted] = useState("");
  const rows = (answer ?? []).filter((row) => row.run.toLowerCase().includes(wanted.toLowerCase()));
  return (
    <section class="card is-wide runs" aria-labelledby="runs-title">
      <header>
        <h2 id="runs-title">Runs in {catalogue.directory}</h2>
        <label class="search">
          <span class="sr-only">Filter by name</span>
          <input type="search" placeholder="filter by name" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
        </label>
      </header>
      {complaint !== null && <Trouble complaint={complaint} />}
      {answer === null && complaint === null && <div class="skeleton" />}
      {answer !== null && answer.length === 0 && (
        <p class="nothing">
          No runs here yet. Record one: <code>stethos run train.py</code>, or try <code>stethos demo</code>.
        </p>
      )}
      {rows.length > 0 && (
        <div class="table-frame">
          <table class="runs-table">
            <thead>
              <tr>
                <th>run</th>
                <th>state</th>
                <th>health</th>
                <th class="is-number">last round</th>
                <th class="is-number">steps</th>
                <th class="is-number">loss</th>
                <th class="is-number">accuracy</th>
                <th class="is-number">overhead</th>
                <th class="is-number">duration</th>
                <th>started</th>
                <th class="is-number">size</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <Row key={row.run} row={row} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Row({ row }: { row: RunRow }) {
  const started = number(row.started_ns ?? null);
  const ended = number(row.ended_ns ?? null) ?? Date.now() * 1e6;
  return (
    <tr aria-busy={!row.is_known}>
      <td>
        <a class="run-name" href={address({ run: row.run, page: "overview", given: {} })}>
          {row.run}
        </a>
      </td>
      <td>{row.state === undefined ? <span class="muted">{row.error ?? "…"}</span> : <State state={row.state} />}</td>
      <td>
        {row.rows_stored === 0 ? <span class="muted">nothing recorded</span> : <HealthMark health={row.health} />}
      </td>
      <td class="is-number">{cell(row.last_round ?? null, "")}</td>
      <td class="is-number">{cell(row.steps ?? null, "")}</td>
      <Measured value={row.loss} name="loss" />
      <Measured value={row.accuracy} name="accuracy" />
      <td class="is-number">{row.overhead_share == null ? "–" : share(row.overhead_share)}</td>
      <td class="is-number">{started === null ? "–" : duration((ended - started) / 1e6)}</td>
      <td title={cell(row.started_ns ?? null, "started_ns")}>{started === null ? "–" : ago(started)}</td>
      <td class="is-number">{cell(row.size_bytes ?? null, "size_bytes")}</td>
    </tr>
  );
}

/** A number that stands out where it is NaN or infinite. */
function Measured({ value, name }: { value: number | string | null | undefined; name: string }) {
  const isBroken = !Number.isFinite(number(value ?? null) ?? 0);
  return <td class={`is-number${isBroken ? " is-broken" : ""}`}>{cell(value ?? null, name)}</td>;
}

export function HealthMark({ health }: { health: Health | null | undefined }) {
  if (health === null || health === undefined) return <span class="muted">not diagnosed</span>;
  if (health.error > 0) return <span class="severity is-error">{health.error === 1 ? "1 error" : `${health.error} errors`}</span>;
  if (health.warning > 0) return <span class="severity is-warning">{health.warning === 1 ? "1 warning" : `${health.warning} warnings`}</span>;
  return <span class="severity is-ok">healthy</span>;
}
