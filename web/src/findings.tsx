// Findings: what is wrong, who did it, since when, how sure, what follows, what to do.
import { useState } from "preact/hooks";
import { Spark } from "./charts/small";
import { useAround } from "./context";
import { label, share } from "./format";
import { number, type Diagnosis, type Evidence, type Finding } from "./model";
import { Code } from "./panel";
import { address } from "./route";

export function Verdict({ diagnosis, run, state }: { diagnosis: Diagnosis | null; run: string; state: string }) {
  if (diagnosis === null) return <div class="verdict is-looking card is-wide"><p class="verdict-word">Listening …</p></div>;
  const open = diagnosis.findings.filter((one) => one.open && one.severity !== "info");
  const notes = diagnosis.findings.filter((one) => one.open && one.severity === "info");
  const [worst] = open;
  if (worst === undefined) {
    const isIdle = diagnosis.checked.length === 0 && diagnosis.not_checked.length > 0;
    const isKept = diagnosis.checked.length === 0 && !isIdle && diagnosis.is_under_way; // what an earlier look left; this one is not over
    const words = !diagnosis.is_diagnosed || isKept
      ? diagnosis.error !== "" ? "Not diagnosed" : "Listening …"
      : isIdle ? "Nothing could be checked" : state === "failed" || state === "killed" ? "No cause found" : "Nothing wrong found";
    const isCalm = diagnosis.is_diagnosed && !isIdle && !isKept && state !== "failed" && state !== "killed";
    return (
      <section class={`verdict card is-wide ${isCalm ? "is-ok" : "is-looking"}`} aria-label="Verdict">
        <p class="verdict-word">{words}</p>
        <p class="verdict-more">
          {diagnosis.error !== "" && <span>{diagnosis.error}</span>}
          {isIdle && <span>there are no rows to look at: no training was seen</span>}
          {diagnosis.checked.length > 0 && <span>{diagnosis.checked.length} checks made, {diagnosis.not_checked.length} not possible</span>}
          {notes.length > 0 && <a href={address({ run, page: "findings", given: {} })}>{notes.length === 1 ? "1 remark" : `${notes.length} remarks`}</a>}
        </p>
      </section>
    );
  }
  const rest = open.length - 1;
  const [evidence] = worst.evidence.filter((one) => one.series.length > 1).sort((a, b) => distance(b) - distance(a));
  const subject = worst.clients[0] ?? worst.layers[0] ?? "seen";
  return (
    <section class={`verdict card is-wide is-${worst.severity}`} aria-label="Verdict">
      <div>
        <p class="verdict-word">{label(worst.title)}</p>
        <p class="verdict-more">
          <Since finding={worst} />
          <span>{share(worst.confidence)} sure</span>
          <span>
            {worst.kind} <span class="muted">{worst.code}</span>
          </span>
          {worst.consequences.length > 0 && <span>{worst.consequences.length} consequences</span>}
        </p>
        {worst.next_step !== "" && <p class="next"><b>Next</b> {worst.next_step}</p>}
        <p class="verdict-links">
          {worst.clients[0] !== undefined && <a class="button" href={address({ run, page: "clients", given: { client: worst.clients[0] } })}>See {label(worst.clients[0])} beside the others</a>}
          <a href={address({ run, page: "findings", given: {} })}>{rest > 0 ? `Evidence, and ${rest} more` : "Evidence"}</a>
        </p>
      </div>
      {evidence !== undefined && (
        <div class="verdict-evidence">
          <p class="note">{evidence.text}</p>
          <Spark series={evidence.series} others={evidence.others} names={[subject, "the others"]} />
        </div>
      )}
    </section>
  );
}

/** How far apart the two curves of an evidence are, relative to what they span: the plainest one is shown first. */
function distance({ series, others }: Evidence): number {
  const [mine, theirs] = [series, others].map((one) => one.map((value) => number(value) ?? Number.NaN));
  const gaps = (mine ?? []).map((value, row) => Math.abs(value - (theirs?.[row] ?? Number.NaN))).filter(Number.isFinite);
  const all = [...(mine ?? []), ...(theirs ?? [])].filter(Number.isFinite);
  const span = Math.max(...all) - Math.min(...all);
  return gaps.length === 0 || !(span > 0) ? 0 : gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length / span;
}

function Since({ finding }: { finding: Finding }) {
  if (finding.first === null) return null;
  const until = finding.last !== null && finding.last !== finding.first ? ` to ${finding.last}` : "";
  return <span>{finding.last === finding.first ? "in" : "since"} {finding.unit} {finding.first}{until}</span>;
}

export function FindingCard({ finding, run, depth = 0 }: { finding: Finding; run: string; depth?: number }) {
  const subject = finding.clients[0] ?? finding.layers[0] ?? "seen";
  const { source } = useAround();
  return (
    <article class={`finding is-${finding.severity}${finding.open ? "" : " is-closed"}`}>
      <header>
        <span class={`severity is-${finding.severity}`}>{finding.open ? (finding.severity === "info" ? "remark" : finding.severity) : "passed"}</span>
        <h3>{label(finding.title)}</h3>
      </header>
      <p class="verdict-more">
        <span>
          {finding.kind} <span class="muted">{finding.code}</span>
        </span>
        <Since finding={finding} />
        <span>{share(finding.confidence)} sure</span>
        {finding.clients.length > 0 && (
          <span>
            {finding.clients.slice(0, 6).map((client) => (
              <a key={client} class="chip" href={address({ run, page: "clients", given: { client } })}>
                {label(client)}
              </a>
            ))}
          </span>
        )}
        {finding.layers.length > 0 && (
          <span>
            {finding.layers.slice(0, 4).map((layer) => (
              <a key={layer} class="chip" href={address({ run, page: "layers", given: { layer } })}>
                {label(layer)}
              </a>
            ))}
          </span>
        )}
        {finding.ranks.length > 0 && <span>rank {finding.ranks.join(", ")}</span>}
      </p>
      {finding.next_step !== "" && <p class="next"><b>Next</b> {finding.next_step}</p>}
      {finding.evidence.length > 0 && (
        <div class="evidence">
          {finding.evidence.map((one) => (
            <div key={one.text}>
              <p>{one.text}</p>
              {one.series.length > 1 && <Spark series={one.series} others={one.others} names={[subject, "the others"]} />}
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
