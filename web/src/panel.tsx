// The frame of a panel: title, choices, drawing, and the SQL behind it.
import { useMemo, useState } from "preact/hooks";
import { Heat } from "./charts/heat";
import { Plot } from "./charts/plot";
import { curvesOf, type Range } from "./charts/series";
import { svgOfBars, svgOfHeat, svgOfTurns } from "./charts/picture";
import { svgOf } from "./charts/lines_svg";
import { csvOf, savePng, saveText } from "./charts/save";
import { isLeaping } from "./charts/smooth";
import { Bars, DataTable, Tiles } from "./charts/small";
import { Tree } from "./charts/tree";
import { Waterfall } from "./charts/waterfall";
import { useAround, useAsked, usePanel } from "./context";
import { label, plain, share } from "./format";
import { column, number, type Columns, type Diagnosis, type Finding, type Given, type Panel, type Parameter } from "./model";
import { address, go, zoomed, zoomOf, type Route } from "./route";
import { panelAddress, Server, type Complaint } from "./source";

interface Framed {
  panel: Panel;
  route: Route;
  version: string;
  diagnosis: Diagnosis | null;
}

/** The parameters of a panel that the address gives. */
export function givenTo(panel: Panel, route: Route): Given {
  const names = panel.parameters.map((parameter) => parameter.name);
  return Object.fromEntries(Object.entries(route.given).filter(([name]) => names.includes(name)));
}

export function PanelCard({ panel, route, version, diagnosis }: Framed) {
  const given = givenTo(panel, route);
  const { theme, source } = useAround();
  const { answer, complaint, isAsking } = usePanel(route.run, panel.name, given, version);
  const choose = (changes: Given): void => go({ ...route, given: { ...route.given, ...changes } });
  // Drawn anew only when there is something else to draw: a live page is told of a change twice a second.
  const drawing = useMemo(
    () => answer !== null && <Drawing panel={panel} columns={answer} given={given} route={route} findings={diagnosis?.findings ?? []} choose={choose} />,
    [answer, diagnosis, JSON.stringify(route), theme],
  );
  const isSaid = complaint?.status === 404 || complaint?.status === 0; // the run is gone, or the server: the page says so
  if (answer === null && isSaid && !source.isReport) return null;
  if (answer !== null && answer.rows === 0 && panel.optional && complaint === null) return null;
  return (
    <section class={`card panel is-${panel.chart}${panel.wide ? " is-wide" : ""}`} aria-labelledby={`title-${panel.name}`} aria-busy={isAsking} data-panel={panel.name}>
      <header>
        <h2 id={`title-${panel.name}`}>{panel.title}</h2>
        <Choices panel={panel} route={route} given={given} version={version} choose={choose} />
      </header>
      {panel.note !== "" && <p class="note">{panel.note}</p>}
      {complaint !== null && <Trouble complaint={complaint} />}
      {answer === null ? (
        complaint === null && <div class="skeleton" aria-hidden="true" />
      ) : answer.rows === 0 ? (
        <Nothing panel={panel} />
      ) : (
        drawing
      )}
      {answer !== null && <Behind run={route.run} panel={panel} given={given} sql={answer.sql} isCut={answer.is_cut} columns={answer} zoom={zoomOf(route.given, panel.x)} />}
    </section>
  );
}

function Nothing({ panel }: { panel: Panel }) {
  const words: Record<string, string> = {
    "client-map": "This run has no federated clients. They are recorded by stethos.federation(...), Flower or NVFlare.",
    "gradient-flow": "No layers have been sampled yet: samples are taken within the overhead budget. Try --preset deep.",
    findings: "No findings.",
  };
  return <p class="nothing">{words[panel.name] ?? "Nothing recorded."}</p>;
}

interface Drawable {
  panel: Panel;
  columns: Columns;
  given: Given;
  route: Route;
  findings: Finding[];
  choose: (changes: Given) => void;
}

function Drawing({ panel, columns, given, route, findings, choose }: Drawable) {
  const { theme } = useAround();
  const selects = Object.entries(panel.selects);
  const selecting = (name: string): string | undefined => selects.find(([, parameter]) => parameter === name)?.[0];
  const toClient = (client: string): void =>
    route.page === "clients" ? choose({ client }) : go({ run: route.run, page: "clients", given: { client } });
  switch (panel.chart) {
    case "tiles":
      return <Tiles columns={columns} />;
    case "line":
    case "stack": {
      const { shown, data, isFitted, isSampled, sampled, steps } = linesOf(panel, columns, given);
      const pick = selecting("round") === undefined ? undefined : (x: number) => choose({ round: String(x) });
      if (data.curves.length === 0 && data.broken.length === 0) return <p class="nothing">Nothing recorded.</p>;
      const zoom = (range: Range | null): void => go({ ...route, given: zoomed(route.given, panel.x, range) }, true);
      return (
        <>
        {isSampled && <Sampled points={sampled} steps={steps} columns={columns} />}
        {isFitted && <LogNote />}
        <Plot
          panel={shown} data={data} findings={findings} theme={theme} onPick={pick} label={`${panel.title}: ${columns.rows} points`}
          zoom={zoomOf(route.given, panel.x)} onZoom={zoom}
        />
        </>
      );
    }
    case "heat": {
      const { scale, unit, title } = scaleOf(panel, given);
      const [key] = Object.keys(panel.selects);
      const parameter = key === undefined ? "" : (panel.selects[key] ?? "");
      return (
        <Heat
          panel={panel} columns={columns} scale={scale} unit={unit} title={title} findings={findings} theme={theme}
          selected={route.given[parameter]}
          onPick={(row) => parameter !== "" && choose({ [parameter]: row === route.given[parameter] ? "" : row })}
        />
      );
    }
    case "bars":
      return <Bars panel={panel} columns={columns} onPick={selecting("client") === undefined ? undefined : toClient} />;
    case "waterfall":
      return <Waterfall columns={columns} onPick={toClient} />;
    case "table": {
      const [entry] = selects;
      const parameter = entry?.[1] ?? "";
      const accused = parameter === "client" ? new Set(findings.filter((one) => one.severity !== "info").flatMap((one) => one.clients)) : undefined;
      return (
        <DataTable
          columns={columns} title={panel.title} selects={entry?.[0]} selected={route.given[parameter]} accused={accused}
          onPick={entry === undefined ? undefined : (value) => choose({ [parameter]: value })}
        />
      );
    }
    case "tree":
      return <Tree panel={panel} columns={columns} />;
    case "metrics":
    case "media":
    case "findings":
      return null;
  }
}

/** The curves of a panel as they are drawn: on a fitting scale, and as dots where only some of the steps were sampled. */
function linesOf(panel: Panel, columns: Columns, given: Given) {
  const names = { client: given.client ?? "client", layer: given.layer ?? "layer", others: "the others", middle: "all layers" };
  const told = panel.chart === "line" ? scaleOf(panel, given).scale : "linear";
  const scale = panel.chart === "line" ? fitting(told, columns, panel) : told;
  const shown = { ...panel, scale };
  const found = curvesOf(shown, columns, names);
  const [sampled, steps] = [column(columns, "sampled").reduce<number>((sum, value) => sum + (number(value) ?? 0), 0), number(column(columns, "of_steps")[0]) ?? 0];
  const isSampled = sampled < steps / 2;
  const data = isSampled ? { ...found, curves: found.curves.map(({ name, values }) => ({ name, values, isDots: true })), ...(panel.x === "step" ? { reach: steps } : {}) } : found;
  return { shown, data, isFitted: scale !== told, isSampled, sampled, steps };
}

/** Why a drawing is not linear though nobody asked for that. */
export function LogNote() {
  return <p class="note">Logarithmic scale: some values are more than 1,000 times the usual one.</p>;
}

/** How many of the steps were sampled, and what decides that. */
export function Sampled({ points, steps, columns }: { points: number; steps: number; columns: Columns }) {
  const budget = number(column(columns, "budget")[0]);
  return (
    <p class="note">
      Samples: {plain(points)} of {plain(steps)} steps ({share(points / steps)}){budget === null ? "" : `, overhead budget ${share(budget)}`}.
    </p>
  );
}

/** A curve that leaps by orders of magnitude, as a loss that diverges, is only seen on a logarithmic scale. */
function fitting(scale: Panel["scale"], columns: Columns, panel: Panel): Panel["scale"] {
  if (scale !== "linear") return scale;
  return isLeaping(panel.y.flatMap((name) => column(columns, name).map(number))) ? "log" : scale;
}

/** How the values are scaled: the option that says something about it, else the panel. */
function scaleOf(panel: Panel, given: Given): { scale: Panel["scale"]; unit: string; title: string } {
  for (const parameter of [...panel.parameters].reverse()) {
    const chosen = parameter.options[given[parameter.name] ?? ""] ?? Object.values(parameter.options)[0];
    if (chosen !== undefined) {
      const scale = panel.chart === "line" && chosen.scale === "diverging" ? "linear" : chosen.scale;
      return { scale, unit: chosen.unit, title: chosen.title };
    }
  }
  return { scale: panel.scale, unit: panel.unit, title: panel.note.length > 90 ? "" : panel.note.replace(/\.$/, "") };
}

interface Chosen {
  panel: Panel;
  route: Route;
  given: Given;
  version: string;
  choose: (changes: Given) => void;
}

/** One of a few, as buttons that the arrow keys reach too. */
export function Segments({ title, names, chosen, choose, titles = {} }: { title: string; names: string[]; chosen: string; choose: (name: string) => void; titles?: Record<string, string> }) {
  const keyed = (event: KeyboardEvent): void => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const index = (names.indexOf(chosen) + move + names.length) % names.length;
    choose(names[index] ?? "");
    ((event.currentTarget as HTMLElement).children[index] as HTMLElement | undefined)?.focus();
  };
  return (
    <div class="segments" role="radiogroup" aria-label={title} onKeyDown={keyed}>
      {names.map((name) => (
        <button type="button" role="radio" aria-checked={chosen === name} tabIndex={chosen === name ? 0 : -1} key={name} title={titles[name]} onClick={() => choose(name)}>
          {name.replaceAll("_", " ")}
        </button>
      ))}
    </div>
  );
}

function Choices({ panel, route, given, version, choose }: Chosen) {
  // One picker per page is enough: panels that follow another one's choice do not repeat it.
  const repeats = panel.name !== "client-norm" && panel.parameters.some((one) => one.name === "client") && panel.page === "clients";
  const shown = panel.parameters.filter(
    (one) => !(repeats && one.name === "client") && !(panel.name === "layer-series" && one.name === "statistic") && !(panel.name === "update-ratio"),
  );
  if (shown.length === 0) return null;
  return (
    <div class="choices">
      {shown.map((parameter) =>
        parameter.kind === "choice" ? (
          <Segments
            key={parameter.name} title={parameter.title} names={Object.keys(parameter.options)}
            titles={Object.fromEntries(Object.entries(parameter.options).map(([key, option]) => [key, option.title]))}
            chosen={given[parameter.name] || (Object.keys(parameter.options)[0] ?? "")}
            choose={(key) => choose({ [parameter.name]: key === Object.keys(parameter.options)[0] ? "" : key })}
          />
        ) : (
          <Picker key={parameter.name} panel={panel} parameter={parameter} route={route} version={version} value={given[parameter.name] ?? ""} choose={choose} />
        ),
      )}
    </div>
  );
}

interface Picked {
  panel: Panel;
  parameter: Parameter;
  route: Route;
  version: string;
  value: string;
  choose: (changes: Given) => void;
}

function Picker({ panel, parameter, route, version, value, choose }: Picked) {
  const { source } = useAround();
  const { answer } = useAsked(() => source.values(route.run, panel.name, parameter.name), JSON.stringify([route.run, panel.name]), version);
  const none: Record<string, string> = { round: "the last", federation: "the last", hang: "the last", client: "none", layer: "the largest" };
  const values = (answer ?? []).map(String);
  if (source.isReport && values.length === 0) return null;
  if (parameter.name === "federation" && values.length < 2 && value === "") return null;
  if (parameter.kind === "text") values.sort(new Intl.Collator("en", { numeric: true }).compare);
  return (
    <label>
      {parameter.title}{" "}
      <select value={value} onChange={(event) => choose({ [parameter.name]: event.currentTarget.value })}>
        <option value="">{none[parameter.name] ?? "all"}</option>
        {value !== "" && !values.includes(value) && <option value={value}>{label(value)}</option>}
        {values.map((one) => (
          <option key={one} value={one}>
            {label(one)}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Trouble({ complaint }: { complaint: Complaint }) {
  return (
    <p class="trouble" role="alert">
      {complaint.message}
      {complaint.hint !== "" && <small>{complaint.hint}</small>}
    </p>
  );
}

/** The SQL of a panel, and the ways to it. */
export function Behind({ run, panel, given, sql, isCut, columns, zoom = null }: { run: string; panel: Panel; given: Given; sql: string; isCut: boolean; columns: Columns; zoom?: Range | null }) {
  const { source } = useAround();
  const [isOpen, setOpen] = useState(false);
  const [isTable, setTable] = useState(false);
  const isDrawn = !["table", "tiles"].includes(panel.chart) && columns.rows > 0;
  return (
    <footer>
      {isCut && <span class="cut">{source.isReport ? "thinned or cut: not every row is shown" : "more rows than a page takes: cut"}</span>}
      <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        SQL
      </button>
      {!source.isReport && (
        <>
          <a href={address({ run, page: "sql", given: { q: sql } })}>SQL page</a>
          <JsonLink path={panelAddress(run, panel.name, given)} />
        </>
      )}
      {isDrawn && (
        <button type="button" aria-expanded={isTable} onClick={() => setTable(!isTable)}>
          Table
        </button>
      )}
      <Files panel={panel} given={given} columns={columns} zoom={zoom} />
      {isOpen && <Code text={sql} />}
      {isTable && <div class="behind-table"><DataTable columns={columns} title={panel.title} /></div>}
    </footer>
  );
}

/** A panel as files: the numbers, and where it is a drawing of lines, the drawing. */
function Files({ panel, given, columns, zoom }: { panel: Panel; given: Given; columns: Columns; zoom: Range | null }) {
  if (columns.rows === 0) return null;
  const svg = (): string => {
    const { scale, unit } = scaleOf(panel, given);
    if (panel.chart === "heat") return svgOfHeat(panel, columns, scale);
    if (panel.chart === "bars") return svgOfBars(panel, columns, unit);
    if (panel.chart === "waterfall") return svgOfTurns(panel.title, columns);
    const { shown, data } = linesOf(panel, columns, given);
    return svgOf(panel.title, shown, data, { zoom });
  };
  return (
    <span class="save" role="group" aria-label={`Save ${panel.title}`}>
      {["line", "stack", "heat", "bars", "waterfall"].includes(panel.chart) && (
        <>
          <button type="button" onClick={() => void savePng(svg(), `${panel.name}.png`)}>PNG</button>
          <button type="button" onClick={() => saveText(svg(), `${panel.name}.svg`, "image/svg+xml")}>SVG</button>
        </>
      )}
      <button type="button" onClick={() => saveText(csvOf(columns), `${panel.name}.csv`, "text/csv")}>CSV</button>
    </span>
  );
}

/** A way to the JSON behind something, in a tab of its own; a plain link could not carry the token. */
export function JsonLink({ path }: { path: string }) {
  const { source } = useAround();
  const open = async (event: Event): Promise<void> => {
    if (!(source instanceof Server)) return;
    event.preventDefault();
    const blob = new Blob([await source.text(path)], { type: "application/json" });
    window.open(URL.createObjectURL(blob), "_blank", "noopener");
  };
  return (
    <a href={path} onClick={open}>
      JSON
    </a>
  );
}

export function Code({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = (): void => {
    void navigator.clipboard?.writeText(text).then(() => setCopied(true));
  };
  return (
    <div class="code">
      <pre tabIndex={0}>{text}</pre>
      <button type="button" onClick={copy}>
        {isCopied ? "copied" : "copy"}
      </button>
    </div>
  );
}
