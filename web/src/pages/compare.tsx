// Several runs side by side: the same panels, one curve each.
import { useMemo } from "preact/hooks";
import { curvesOf, Plot, type Curves } from "../charts/plot";
import { seriesColour } from "../colour";
import { useAround, useAsked } from "../context";
import { cell } from "../format";
import type { Columns, Panel, RunRow } from "../model";
import { Trouble } from "../panel";
import { go, type Route } from "../route";
import { HealthMark } from "./runs";

const MOST = 8;
const FACTS: [keyof RunRow, string][] = [
  ["state", "state"],
  ["last_round", "rounds"],
  ["steps", "steps"],
  ["loss", "loss"],
  ["accuracy", "accuracy"],
  ["overhead_share", "overhead"],
  ["rows_stored", "rows stored"],
  ["rows_missing", "rows missing"],
  ["size_bytes", "size on disk"],
  ["started_ns", "started"],
  ["command", "command"],
];

export function ComparePage({ route }: { route: Route }) {
  const { source, catalogue } = useAround();
  const { answer, complaint } = useAsked(() => source.runs(), "");
  const known = (answer ?? []).map((row) => row.run);
  const given = (route.given.runs ?? "").split(",").filter((name) => known.includes(name));
  const chosen = (given.length > 0 ? given : known.slice(0, 2)).slice(0, MOST);
  const toggle = (name: string): void => {
    const next = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name];
    go({ ...route, given: { runs: next.join(",") } });
  };
  const rows = chosen.map((name) => answer?.find((row) => row.run === name)).filter((row) => row !== undefined);
  return (
    <div class="grid">
      <section class="card is-wide">
        <header>
          <h2>Compare runs</h2>
        </header>
        {complaint !== null && <Trouble complaint={complaint} />}
        {answer === null && complaint === null && <div class="skeleton" />}
        <div class="chosen-runs" role="group" aria-label="Runs to compare">
          {known.slice(0, 40).map((name) => (
            <label key={name} class={chosen.includes(name) ? "is-on" : ""}>
              <input type="checkbox" checked={chosen.includes(name)} onChange={() => toggle(name)} />
              <i style={{ background: chosen.includes(name) ? seriesColour(chosen.indexOf(name)) : "transparent" }} />
              {name}
            </label>
          ))}
        </div>
        {answer !== null && known.length < 2 && <p class="nothing">There is only one run here. Record another one to compare it with.</p>}
        {rows.length > 0 && (
          <div class="table-frame">
            <table class="facts">
              <thead>
                <tr>
                  <th />
                  {rows.map((row) => (
                    <th key={row.run}>{row.run}</th>
                  ))}
                </tr>
              </thead>
              <tbody>
                <tr>
                  <th>health</th>
                  {rows.map((row) => (
                    <td key={row.run}>
                      <HealthMark health={row.health} />
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
        )}
      </section>
      {catalogue.panels
        .filter((panel) => panel.comparable)
        .map((panel) => (
          <Together key={panel.name} panel={panel} runs={chosen} />
        ))}
    </div>
  );
}

function Together({ panel, runs }: { panel: Panel; runs: string[] }) {
  const { source, theme } = useAround();
  const { answer, complaint } = useAsked(() => Promise.all(runs.map((run) => source.panel(run, panel.name, {}))), `${panel.name} ${runs.join("/")}`);
  const data = useMemo(() => (answer === null ? null : together(panel, answer, runs)), [answer]);
  if (complaint !== null) return <Trouble complaint={complaint} />;
  if (data === null) return <section class="card"><div class="skeleton" /></section>;
  if (data.curves.length === 0) return null;
  const [y = ""] = panel.y;
  const what = panel.chart === "stack" ? `${panel.title}: total` : panel.title;
  return (
    <section class="card panel" aria-label={what}>
      <header>
        <h2>{what}</h2>
      </header>
      <p class="note">{panel.note}</p>
      <Plot panel={{ ...panel, chart: "line", marks: "", y: [y] }} data={data} theme={theme} label={what} />
    </section>
  );
}

/** One curve per run: its first curve, or for a stack the height of it. */
function together(panel: Panel, answers: Columns[], runs: string[]): Curves {
  const each = answers.map((columns) => curvesOf({ ...panel, band: [] }, columns));
  const x = [...new Set(each.flatMap((one) => one.x))].sort((a, b) => a - b);
  const curves = each.flatMap((one, index) => {
    if (one.curves.length === 0) return [];
    const place = new Map(one.x.map((value, row) => [value, row]));
    const values = x.map((value) => {
      const row = place.get(value);
      if (row === undefined) return null;
      if (panel.chart === "stack") return one.curves.reduce((sum, curve) => sum + (curve.values[row] ?? 0), 0);
      return one.curves[0]?.values[row] ?? null;
    });
    return [{ name: runs[index] ?? "", values }];
  });
  return { x, curves };
}
