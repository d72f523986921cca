// Panels and views of the user's own: queries with their drawings, and pages as they were set up, by name.
import { useState } from "preact/hooks";
import { Asked, AskedFiles, shapeOf } from "../charts/asked";
import { useAround, useAsked } from "../context";
import { label } from "../format";
import type { Own, OwnPanel, OwnView } from "../model";
import { Code, Trouble } from "../panel";
import { address, type Route } from "../route";
import { Complaint } from "../source";

const EXAMPLE = `[[panel]]
title = "Loss by client"
sql = "SELECT round, client, loss FROM client_rounds"
chart = "line"    # table, line, bars or heat
x = "round"
y = "loss"
by = "client"

[[view]]
name = "Smoothed losses"
address = "#/run/RUN/metrics?like=loss&smooth=0.6"
`;

export function tomlOf(panel: OwnPanel): string {
  const fields: (keyof OwnPanel)[] = ["title", "sql", "chart", "x", "y", "by", "note", "view"];
  const lines = fields.filter((name) => panel[name]).map((name) => `${name} = ${JSON.stringify(panel[name])}`);
  return `[[panel]]\n${lines.join("\n")}\n`;
}

export function useSaving(): { save: (change: { panel: OwnPanel } | { view: OwnView } | { remove: string }) => Promise<boolean>; complaint: Complaint | null } {
  const { source } = useAround();
  const [complaint, setComplaint] = useState<Complaint | null>(null);
  const save = async (change: { panel: OwnPanel } | { view: OwnView } | { remove: string }): Promise<boolean> => {
    try {
      await source.saveOwn(change);
      setComplaint(null);
      dispatchEvent(new Event("stethos-own"));
      return true;
    } catch (error) {
      setComplaint(error instanceof Complaint ? error : new Complaint(String(error), "", 0));
      return false;
    }
  };
  return { save, complaint };
}

export function OwnPage({ route, version, own, complaint }: { route: Route; version: string; own: Own | null; complaint: Complaint | null }) {
  const { catalogue } = useAround();
  const { save, complaint: refused } = useSaving();
  const mayEdit = catalogue.may?.includes("edit") ?? false;
  if (own === null) return <div class="grid"><div class="card is-wide">{complaint === null ? <div class="skeleton" /> : <Trouble complaint={complaint} />}</div></div>;
  const headings = [...new Set(own.panels.map((one) => one.view))];
  const remove = (name: string): void => void save({ remove: name });
  return (
    <div class="grid own-page">
      {own.errors.map((text) => <p class="card is-wide trouble" role="alert" key={text}>{text}</p>)}
      {refused !== null && <div class="card is-wide"><Trouble complaint={refused} /></div>}
      {own.views.length > 0 && (
        <section class="card is-wide" aria-labelledby="views-title">
          <header><h2 id="views-title">Saved views</h2></header>
          <ul class="plain views">
            {own.views.map((one) => (
              <li key={one.name}>
                <a href={one.address}>{label(one.name)}</a>{" "}
                {mayEdit && one.is_saved_here && <button type="button" aria-label={`remove ${label(one.name)}`} onClick={() => remove(one.name)}>remove</button>}
              </li>
            ))}
          </ul>
        </section>
      )}
      {headings.map((heading) => (
        <>
          {heading !== "" && <h2 class="divider is-wide" key={`h ${heading}`}>{label(heading)}</h2>}
          {own.panels.filter((one) => one.view === heading).map((one) => (
            <OwnCard key={`${route.run} ${one.title}`} panel={one} route={route} version={version} remove={mayEdit && one.is_saved_here ? () => remove(one.title) : undefined} />
          ))}
        </>
      ))}
      <section class="card is-wide" aria-labelledby="own-title">
        <header><h2 id="own-title">{own.panels.length === 0 ? "No panels of your own yet" : "Add a panel"}</h2></header>
        <p>
          Ask on the <a href={address({ run: route.run, page: "sql", given: {} })}>SQL page</a> and keep the result with its drawing
          {mayEdit ? " (Save as a panel)" : "; with stethos serve --edit the page can save it"}. Or write a file called stethos.toml where you start stethos serve:
        </p>
        <Code text={EXAMPLE} />
      </section>
    </div>
  );
}

function OwnCard({ panel, route, version, remove }: { panel: OwnPanel; route: Route; version: string; remove: (() => void) | undefined }) {
  const { source } = useAround();
  const { answer, complaint, isAsking } = useAsked(() => source.sql(route.run, panel.sql), JSON.stringify([route.run, panel.sql]), version);
  const [isOpen, setOpen] = useState(false);
  const shape = answer === null ? null : shapeOf(answer, panel.chart, { x: panel.x, y: panel.y, by: panel.by === "" && panel.chart !== "heat" ? "" : panel.by || undefined });
  const title = label(panel.title);
  return (
    <section class={`card panel is-${panel.chart}${panel.chart === "table" || panel.chart === "heat" ? " is-wide" : ""}`} aria-label={title} aria-busy={isAsking && answer === null} data-own={panel.title}>
      <header><h3>{title}</h3></header>
      {panel.note !== "" && <p class="note">{panel.note}</p>}
      {complaint !== null ? <Trouble complaint={complaint} /> : answer === null || shape === null ? <div class="skeleton" /> : <Asked title={title} answer={answer} shape={shape} height={230} />}
      <footer>
        <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>SQL</button>
        <a href={address({ run: route.run, page: "sql", given: { q: panel.sql, as: panel.chart, x: panel.x, y: panel.y, by: panel.by } })}>SQL page</a>
        {remove !== undefined && <button type="button" onClick={remove} aria-label={`remove ${title}`}>remove</button>}
        {answer !== null && shape !== null && <AskedFiles title={panel.title} answer={answer} shape={shape} />}
        {isOpen && <Code text={panel.sql} />}
      </footer>
    </section>
  );
}

/** Keep what is shown under a name: a small form behind a button. */
export function SaveView({ route }: { route: Route }) {
  const { save, complaint } = useSaving();
  const [isOpen, setOpen] = useState(false);
  const [name, setName] = useState("");
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (await save({ view: { name, address: address(route) } })) {
      setOpen(false);
      setName("");
    }
  };
  if (!isOpen) return <button type="button" class="quiet" onClick={() => setOpen(true)}>Save view</button>;
  return (
    <form class="save-view" onSubmit={(event) => void submit(event)}>
      <label><span class="sr-only">Name of the view</span><input required maxLength={200} placeholder="name of the view" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
      <button type="submit" class="button">Save</button>
      <button type="button" class="quiet" onClick={() => setOpen(false)}>Cancel</button>
      {complaint !== null && <Trouble complaint={complaint} />}
    </form>
  );
}

/** Keep a question with its drawing as a panel; where nothing may be saved, as text for a file. */
export function SavePanel({ panel }: { panel: Omit<OwnPanel, "title"> }) {
  const { catalogue } = useAround();
  const { save, complaint } = useSaving();
  const [title, setTitle] = useState("");
  const [said, setSaid] = useState("");
  const mayEdit = catalogue.may?.includes("edit") ?? false;
  const whole = { ...panel, title: title.trim() };
  const keep = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (mayEdit) setSaid((await save({ panel: whole })) ? "saved under Own panels" : "");
    else await navigator.clipboard?.writeText(tomlOf(whole)).then(() => setSaid("copied: paste it into stethos.toml"));
  };
  return (
    <form class="save-view" onSubmit={(event) => void keep(event)}>
      <label>
        <span class="sr-only">Title of the panel</span>
        <input required maxLength={200} placeholder="title of the panel" value={title} onInput={(event) => { setTitle(event.currentTarget.value); setSaid(""); }} />
      </label>
      <button type="submit" class="button">{mayEdit ? "Save as a panel" : "Copy as TOML"}</button>
      <span class="muted" role="status">{said}</span>
      {complaint !== null && <Trouble complaint={complaint} />}
    </form>
  );
}
