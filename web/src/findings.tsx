// Findings: what is wrong, who did it, since when, how sure, what proves it, what was done, what to do.
import { useState } from "preact/hooks";
import { Spark } from "./charts/small";
import { useAround } from "./context";
import { counted, label, share } from "./format";
import type { Conclusion, Diagnosis, Finding, Proof, Silence } from "./model";
import { Code } from "./panel";
import { address } from "./route";
import { Server } from "./source";

const [MOST_CLIENTS, MOST_LAYERS] = [6, 4]; // as chips
const TONES = { red: "is-error", amber: "is-warning", green: "is-ok", grey: "is-looking" };

/** The run's state, as a badge. */
export function StateMark({ conclusion }: { conclusion: Conclusion | undefined }) {
  if (conclusion === undefined || conclusion.state === "not diagnosed") return <span class="muted">not diagnosed</span>;
  return <span class={`severity ${TONES[conclusion.colour]}`}>{conclusion.text}</span>;
}

export function Verdict({ diagnosis, run }: { diagnosis: Diagnosis | null; run: string }) {
  if (diagnosis === null || (!diagnosis.is_diagnosed && diagnosis.error === "")) {
    return <div class="verdict is-looking card is-wide"><p class="verdict-word">Diagnosing …</p></div>;
  }
  const { conclusion, findings, checked, not_checked: unchecked, error } = diagnosis;
  const problems = inOrder(findings).filter((one) => one.severity !== "info");
  const [worst] = problems;
  if (worst === undefined) {
    return (
      <section class={`verdict card is-wide ${TONES[conclusion.colour]}`} aria-label="Verdict">
        <div>
          <p class="verdict-word">{sentence(conclusion.text)}</p>
          <p class="verdict-more">
            {error !== "" && <span>{error}</span>}
            {conclusion.state === "nothing could be checked" && <span>No optimizer step and no round was recorded. <code>stethos doctor -t {run}</code> says what was, and why.</span>}
            {conclusion.state === "nothing found" && <span>{checked.length} checks made, {unchecked.length} not possible</span>}
            {conclusion.infos > 0 && <a href={address({ run, page: "findings", given: {} })}>{conclusion.infos} info</a>}
          </p>
        </div>
      </section>
    );
  }
  const rest = problems.length - 1;
  const evidence = worst.evidence.find((one) => one.series.length > 1);
  return (
    <section class={`verdict card is-wide ${TONES[conclusion.colour]}`} aria-label="Verdict">
      <div>
        <p class="verdict-state">{sentence(conclusion.text)}</p>
        <p class="verdict-word">{label(worst.title)}</p>
        <p class="verdict-more">
          <Since finding={worst} />
          <span>{share(worst.confidence)} sure</span>
          <span>
            {worst.kind} <span class="muted">{worst.code}</span>
          </span>
          {worst.consequences.length > 0 && <span>{counted(worst.consequences.length, "consequence")}</span>}
        </p>
        {worst.next_step !== "" && <p class="next"><b>Next</b> <Words text={worst.next_step} /></p>}
        <p class="verdict-links">
          {worst.clients[0] !== undefined && <a class="button" href={address({ run, page: "clients", given: { client: worst.clients[0] } })}>See {label(worst.clients[0])} beside the others</a>}
          <a href={address({ run, page: "findings", given: {} })}>{rest > 0 ? `Evidence, and ${rest} more` : "Evidence"}</a>
        </p>
      </div>
      {(evidence !== undefined || worst.proof !== null) && (
        <div class="verdict-evidence">
          {worst.proof !== null && <ProofMark proof={worst.proof} clients={worst.clients} />}
          {evidence !== undefined && <p class="note">{evidence.text}</p>}
          {evidence !== undefined && <Spark {...evidence} />}
        </div>
      )}
    </section>
  );
}

/** What goes on before what is over; each most severe first, as they come. */
export function inOrder(findings: Finding[]): Finding[] {
  return [...findings.filter((one) => one.open), ...findings.filter((one) => !one.open)];
}

/** A text in which code stands between backticks. */
function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, place, { length }) => (place % 2 === 1 && place < length - 1 ? <code key={place}>{part}</code> : `${place % 2 === 1 ? "`" : ""}${part}`))}</>;
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** PROVED, with the measure with the accused, without it, and without somebody else. */
function ProofMark({ proof, clients }: { proof: Proof; clients: string[] }) {
  const who = clients.length === 1 ? label(clients[0] ?? "") : `these ${clients.length}`;
  const bars: [string, number[]][] = [[`with ${who}`, proof.before], [`without ${who}`, proof.without], ["without another", proof.control]];
  const shown = bars.filter(([, values]) => values.length > 0);
  const most = Math.max(...shown.map(([, values]) => Math.max(...values)), Number.MIN_VALUE);
  return (
    <figure class={`proof is-${proof.verdict}`} aria-label={`${proof.verdict}: ${proof.words}`}>
      <figcaption>
        <span class="severity">{proof.verdict.toUpperCase()}</span> {proof.measure}
      </figcaption>
      {shown.map(([name, [mean = 0, low = mean, high = mean]], place) => (
        <div key={name} title={`${low.toFixed(3)} to ${high.toFixed(3)}`} class={place === 1 ? "is-without" : ""}>
          <span>{name}</span>
          <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
            <rect x="0" y="1" width={(100 * mean) / most} height="8" />
            <line x1={(100 * low) / most} x2={(100 * high) / most} y1="5" y2="5" />
          </svg>
          <b>{mean.toFixed(3)}</b>
        </div>
      ))}
      {shown.length === 0 && <p>{proof.words}</p>}
    </figure>
  );
}

function Since({ finding }: { finding: Finding }) {
  const { first, last, unit, open } = finding;
  if (first === null) return null;
  if (open) return <span>since {unit} {first}</span>;
  return <span>{last === null || last === first ? `${unit} ${first}` : `${unit}s ${first} to ${last}`}</span>;
}

export function FindingCard({ finding, run, depth = 0, silences = {} }: { finding: Finding; run: string; depth?: number; silences?: Record<string, Silence> }) {
  const { source } = useAround();
  const [changed, setChanged] = useState<Record<string, Silence> | null>(null);
  const silence = (changed ?? silences)[finding.key ?? ""];
  return (
    <article class={`finding is-${finding.severity}${finding.open && silence === undefined ? "" : " is-closed"}`}>
      <header>
        <span class={`severity is-${finding.open ? finding.severity : "over"}`}>{finding.open ? finding.severity : finding.state.replace(/.*, /, "")}</span>
        <h3>{label(finding.title)}</h3>
        {depth === 0 && <Silencing finding={finding} run={run} silence={silence} told={setChanged} />}
      </header>
      <p class="verdict-more">
        <span>
          {finding.kind} <span class="muted">{finding.code}</span>
        </span>
        <Since finding={finding} />
        {finding.severity !== "info" && <span>{share(finding.confidence)} sure</span>}
        {finding.clients.length > 0 && (
          <span>
            {finding.clients.slice(0, MOST_CLIENTS).map((client) => (
              <a key={client} class="chip" href={address({ run, page: "clients", given: { client } })}>
                {label(client)}
              </a>
            ))}
            {finding.clients.length > MOST_CLIENTS && ` and ${finding.clients.length - MOST_CLIENTS} more`}
          </span>
        )}
        {finding.layers.length > 0 && (
          <span>
            {finding.layers.length === 1 ? "layer " : "layers "}
            {finding.layers.slice(0, MOST_LAYERS).map((layer) => (
              <a key={layer} class="chip" href={address({ run, page: "layers", given: { layer } })}>
                {label(layer)}
              </a>
            ))}
            {finding.layers.length > MOST_LAYERS && ` and ${finding.layers.length - MOST_LAYERS} more`}
          </span>
        )}
        {finding.ranks.length > 0 && <span>rank {finding.ranks.join(", ")}</span>}
      </p>
      {finding.proof !== null && <ProofMark proof={finding.proof} clients={finding.clients} />}
      {finding.actions.map((one) => (
        <p class="next" key={one.action} title={one.reason}>
          <b>Done</b> {label(one.text)}{one.effect !== "" && <span class="muted"> {one.effect}</span>}
        </p>
      ))}
      {finding.next_step !== "" && <p class="next"><b>Next</b> <Words text={finding.next_step} /></p>}
      {finding.evidence.length > 0 && (
        <div class="evidence">
          {finding.evidence.map((one) => (
            <div key={one.text}>
              <p><Words text={one.text} /></p>
              {one.series.length > 1 && <Spark {...one} />}
              {one.sql !== "" && <Shown sql={one.sql} run={run} isReport={source.isReport} />}
            </div>
          ))}
        </div>
      )}
      {finding.consequences.length > 0 && depth < 4 && (
        <div class="consequences">
          <h4>What follows from it</h4>
          {finding.consequences.map((one) => (
            <FindingCard key={one.title} finding={one} run={run} depth={depth + 1} />
          ))}
        </div>
      )}
    </article>
  );
}

/** Acknowledge a finding, so that it is not told again; silence it; or undo that. */
function Silencing({ finding, run, silence, told }: { finding: Finding; run: string; silence: Silence | undefined; told: (all: Record<string, Silence>) => void }) {
  const { source, catalogue } = useAround();
  const [complaint, setComplaint] = useState("");
  const mayEdit = (catalogue.may?.includes("edit") ?? false) && finding.key !== undefined;
  const decide = async (state: Silence["state"] | null): Promise<void> => {
    if (!(source instanceof Server)) return;
    try {
      told((await source.post(`/api/runs/${encodeURIComponent(run)}/silences`, { key: finding.key, state })) as Record<string, Silence>);
      setComplaint("");
    } catch (error) {
      setComplaint(error instanceof Error ? error.message : String(error));
    }
  };
  const words = { acknowledged: "Acknowledge", silenced: "Silence" };
  return (
    <span class="silencing">
      {silence !== undefined && <span class="tag" title={silence.note}>{silence.state}</span>}
      {mayEdit && silence !== undefined && <button type="button" class="quiet" onClick={() => void decide(null)}>Undo</button>}
      {mayEdit && silence === undefined && (["acknowledged", "silenced"] as const).map((state) => <button type="button" class="quiet" key={state} onClick={() => void decide(state)}>{words[state]}</button>)}
      {complaint !== "" && <span class="trouble" role="alert">{complaint}</span>}
    </span>
  );
}

function Shown({ sql, run, isReport }: { sql: string; run: string; isReport: boolean }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <div class="shown">
      <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        SQL
      </button>
      {!isReport && <a href={address({ run, page: "sql", given: { q: sql } })}>SQL page</a>}
      {isOpen && <Code text={sql} />}
    </div>
  );
}
