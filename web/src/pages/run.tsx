// Pages about one run that are made of panels, with what some of them add.
import { useEffect, useState } from "preact/hooks";
import { Branches, type Frame } from "../charts/tree";
import { useAround, useAsked, type Asked } from "../context";
import { FindingCard, inOrder, StateMark, Verdict } from "../findings";
import { label, moment } from "../format";
import type { Diagnosis } from "../model";
import { PanelCard, Trouble } from "../panel";
import { MetricsPreview } from "./metrics";
import type { Route } from "../route";
import { Report } from "../source";

interface Shown {
  route: Route;
  version: string;
  state: string;
  diagnosis: Asked<Diagnosis>;
}

export function RunPage({ route, version, state, diagnosis }: Shown) {
  const { catalogue, source } = useAround();
  const panels = catalogue.panels.filter((panel) => panel.page === route.page && !["findings", "metrics", "media"].includes(panel.chart) && panel.name !== "progress"); // which stands at the top of every page
  const isAboutOne = route.page === "clients";
  const needsClient = (name: string): boolean => isAboutOne && name.startsWith("client-") && !["client-map", "client-table"].includes(name);
  const hasClient = (route.given.client ?? "") !== "";
  return (
    <>
    <div class="grid is-page">
      {route.page === "overview" && (diagnosis.answer !== null || diagnosis.complaint?.status !== 0) && <Verdict diagnosis={diagnosis.answer} run={route.run} />}
      {route.page === "overview" && source instanceof Report && <Made report={source} />}
      {route.page === "findings" && <Findings diagnosis={diagnosis} run={route.run} />}
      {panels.map((panel) => {
        if (needsClient(panel.name) && !hasClient) return null;
        return (
          <>
            {panel.name === "hyperparameters" && <MetricsPreview route={route} version={version} />}
            {needsClient(panel.name) && panel.name === "client-norm" && (
              <h2 class="divider is-wide" id="one-client">
                {label(route.given.client ?? "")} <span class="muted">beside the others</span>
              </h2>
            )}
            <PanelCard key={`${route.run}/${panel.name}`} panel={panel} route={route} version={version} diagnosis={diagnosis.answer} />
            {panel.name === "processes" && !source.isReport && <Stacks run={route.run} isLive={state === "running"} />}
          </>
        );
      })}
    </div>
    <p class="card nothing">{EMPTY[route.page] ?? "Nothing recorded."}</p>
    </>
  );
}

/** What a page says that has nothing to show. */
const EMPTY: Record<string, string> = {
  time: "Nothing was timed in this run: no step, no round and no span.",
  memory: "No memory and no traffic was recorded in this run.",
};

/** When a report was made, and what it leaves out. */
function Made({ report }: { report: Report }) {
  const { made_ns: made, notes, text = "" } = report.carried;
  return (
    <>
      {text.trim() !== "" && <Words text={text} />}
      <p class="made note is-wide">
        Report of {moment(Number(made))}. {notes.join(" ")}
      </p>
    </>
  );
}

/** Somebody's words: headings, lists and paragraphs of plain text, never markup. */
function Words({ text }: { text: string }) {
  const blocks = text.split(/\n\s*\n/).map((block) => block.trim()).filter((block) => block !== "");
  return (
    <section class="card is-wide words" aria-label="Text">
      {blocks.map((block, place) => {
        const [, title] = /^#+\s+([^\n]*)/.exec(block) ?? [];
        const rest = title === undefined ? block : block.slice(block.indexOf(title) + title.length).trim();
        const lines = rest.split("\n");
        const isList = rest !== "" && lines.every((line) => /^\s*[-*] /.test(line));
        return (
          <div key={place}>
            {title !== undefined && <h2>{title}</h2>}
            {isList ? <ul>{lines.map((line) => <li key={line}>{line.replace(/^\s*[-*] /, "")}</li>)}</ul> : rest !== "" && <p>{rest}</p>}
          </div>
        );
      })}
    </section>
  );
}

function Findings({ diagnosis, run }: { diagnosis: Asked<Diagnosis>; run: string }) {
  const { answer, complaint } = diagnosis;
  if (answer === null) return <div class="card is-wide">{complaint === null ? <div class="skeleton" /> : <Trouble complaint={complaint} />}</div>;
  return (
    <section class="card is-wide findings" aria-label="Findings">
      <header>
        <h2>
          What was found <StateMark conclusion={answer.conclusion} />
        </h2>
        <p class="note">
          {answer.is_under_way ? "Diagnosing …" : answer.error !== "" ? `Not diagnosed: ${answer.error}` : `${answer.checked.length} checks made.`}
        </p>
      </header>
      {inOrder(answer.findings).map((one) => (
        <FindingCard key={`${one.code}${one.title}`} finding={one} run={run} silences={answer.silences ?? {}} />
      ))}
      {answer.not_checked.length > 0 && (
        <details>
          <summary>{answer.not_checked.length} checks were not possible</summary>
          <ul class="plain">
            {answer.not_checked.map((one) => (
              <li key={one.code}>
                <b>{one.name}</b> <span class="muted">{one.code}</span>: {one.reason}
              </li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}

interface Captured {
  tree: Frame;
  odd: Record<string, string>;
  errors: Record<string, string>;
  processes: number;
  left_out: number;
}

/** The stacks of all processes, merged: where everybody is, and who is somewhere else. */
function Stacks({ run, isLive }: { run: string; isLive: boolean }) {
  const { source } = useAround();
  const [turn, setTurn] = useState(0);
  const { answer, complaint, isAsking } = useAsked(() => (isLive && turn > 0 ? source.stacks(run) : Promise.resolve(null)), `${run} ${turn} ${isLive}`);
  useEffect(() => setTurn(0), [run]);
  const captured = answer as Captured | null;
  return (
    <section class="card is-wide" aria-label="Stacks" data-panel="stacks">
      <header>
        <h2>Stacks of all processes now</h2>
        {isLive && (
          <button type="button" class="button is-quiet" disabled={isAsking} onClick={() => setTurn(turn + 1)}>
            {turn === 0 ? "Take the stacks" : "Take them again"}
          </button>
        )}
      </header>
      <p class="note">Read from outside; the training is not touched. The same as stethos backtrace -t {run}</p>
      {complaint !== null && <Trouble complaint={complaint} />}
      {!isLive && <p class="nothing">The run has ended: there is no live process to inspect.</p>}
      {isLive && captured === null && complaint === null && <p class="nothing">Stacks are taken only when you ask.</p>}
      {captured !== null && captured.processes === 0 && <p class="nothing">No process of this run is alive on this machine.</p>}
      {captured !== null &&
        Object.entries(captured.odd).map(([who, where]) => (
          <p class="odd" key={who}>
            <b>{who}</b> is not where most are: <code>{where}</code>
          </p>
        ))}
      {captured !== null && <Branches frames={captured.tree.children} />}
      {captured !== null &&
        Object.entries(captured.errors).map(([who, why]) => (
          <p class="trouble" key={who}>
            {who}: {why}
          </p>
        ))}
    </section>
  );
}
