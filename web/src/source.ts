// Where the page gets its numbers: the server, or what a report carries with it.
import { keep, kept } from "./kept";
import { parse } from "./route";
import type { Catalogue, Columns, Comparison, Diagnosis, Given, Own, OwnPanel, OwnView, RunRow } from "./model";

export class Complaint extends Error {
  constructor(
    message: string,
    readonly hint: string,
    readonly status: number,
  ) {
    super(message);
  }
}

export interface Source {
  readonly isReport: boolean;
  catalogue(): Promise<Catalogue>;
  runs(): Promise<RunRow[]>;
  compare(runs: string[]): Promise<Comparison>;
  panel(run: string, panel: string, given: Given): Promise<Columns>;
  values(run: string, panel: string, parameter: string): Promise<(string | number)[]>;
  findings(run: string): Promise<Diagnosis>;
  sql(run: string, text: string): Promise<Columns>;
  stacks(run: string): Promise<unknown>;
  own(): Promise<Own>;
  saveOwn(change: { panel: OwnPanel } | { view: OwnView } | { remove: string }): Promise<Own>;
  /** Calls back with every new version of a run until the returned function is called. */
  follow(run: string, changed: (version: string) => void, gone: () => void): () => void;
}

const KEPT = "stethos-token";
const MOST_KEPT = 200;
const RUNS = "/api/runs";
/** What a page of a run is opened for: a panel, with those of its parameters that stand in the address. */
const FIRST: Record<string, [string, string[]]> = { overview: ["summary", []], clients: ["client-map", ["measure"]] };

/** The token from the address, kept for further tabs; the address loses it at once. */
export function takeToken(): string {
  const given = new URLSearchParams(location.hash.replace(/^#/, ""));
  const token = given.get("token");
  if (token !== null) {
    keep(KEPT, token);
    history.replaceState(null, "", `${location.pathname}#${given.get("to") ?? "/"}`);
  }
  return kept(KEPT) ?? "";
}

export function panelAddress(run: string, panel: string, given: Given): string {
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== "")).toString();
  return `/api/runs/${encodeURIComponent(run)}/panels/${panel}${query === "" ? "" : `?${query}`}`;
}

export function compareAddress(runs: string[]): string {
  return `/api/compare?${new URLSearchParams(runs.map((run) => ["run", run])).toString()}`;
}

export class Server implements Source {
  readonly isReport = false;
  private readonly last = new Map<string, { tag: string; content: unknown }>();
  private readonly early = new Map<string, Promise<unknown>>();
  private runsVersion = "";
  private knownRuns: RunRow[] = [];

  constructor(private readonly token: string) {}

  async post(path: string, body: object): Promise<unknown> {
    return this.send(path, { method: "POST", body: JSON.stringify(body) });
  }

  /** The panels there are; beside them, not after them, what the page in the address is opened for. */
  async catalogue(): Promise<Catalogue> {
    const { page, run, given } = parse(location.hash);
    const [panel, names] = FIRST[page] ?? [];
    if (run === "") this.begin(RUNS, this.askRuns());
    else if (panel !== undefined) {
      const path = panelAddress(run, panel, Object.fromEntries(Object.entries(given).filter(([name]) => names?.includes(name))));
      this.begin(path, this.get(path));
    }
    return (await this.get("/api/panels")) as Catalogue;
  }

  private begin(path: string, answer: Promise<unknown>): void {
    answer.catch(() => undefined);
    this.early.set(path, answer);
  }

  /** An answer that was asked for early; once, as what is asked for again is to be new. */
  private taken(path: string): Promise<unknown> | undefined {
    const answer = this.early.get(path);
    this.early.delete(path);
    return answer;
  }

  async runs(): Promise<RunRow[]> {
    return ((await this.taken(RUNS)) as RunRow[] | undefined) ?? this.askRuns();
  }

  private async askRuns(): Promise<RunRow[]> {
    const told = (await this.send(`${RUNS}?version=${this.runsVersion}`, {})) as { version: string; runs?: RunRow[] };
    this.runsVersion = told.version;
    this.knownRuns = told.runs ?? this.knownRuns; // left out where nothing has changed
    return this.knownRuns;
  }

  async compare(runs: string[]): Promise<Comparison> {
    return (await this.get(compareAddress(runs))) as Comparison;
  }

  async panel(run: string, panel: string, given: Given): Promise<Columns> {
    const path = panelAddress(run, panel, given);
    return ((await this.taken(path)) ?? (await this.get(path))) as Columns;
  }

  async values(run: string, panel: string, parameter: string): Promise<(string | number)[]> {
    const path = `/api/runs/${encodeURIComponent(run)}/panels/${panel}/values/${parameter}`;
    return ((await this.get(path)) as { values: (string | number)[] }).values;
  }

  async findings(run: string): Promise<Diagnosis> {
    return (await this.get(`/api/runs/${encodeURIComponent(run)}/findings`)) as Diagnosis;
  }

  async stacks(run: string): Promise<unknown> {
    return this.get(`/api/runs/${encodeURIComponent(run)}/stacks`);
  }

  async sql(run: string, text: string): Promise<Columns> {
    const path = `/api/runs/${encodeURIComponent(run)}/sql`;
    return (await this.send(path, { method: "POST", body: JSON.stringify({ sql: text }) })) as Columns;
  }

  async own(): Promise<Own> {
    return (await this.get("/api/own")) as Own;
  }

  async saveOwn(change: { panel: OwnPanel } | { view: OwnView } | { remove: string }): Promise<Own> {
    return (await this.send("/api/own/save", { method: "POST", body: JSON.stringify(change) })) as Own;
  }

  follow(run: string, changed: (version: string) => void, gone: () => void): () => void {
    let stop = new AbortController();
    let isOver = false;
    const listen = async (): Promise<void> => {
      while (!isOver && !document.hidden) {
        try {
          const answer = await this.open(`/api/runs/${encodeURIComponent(run)}/events`, { signal: stop.signal });
          await read(answer, (event, data) => (event === "gone" ? gone() : changed(data)));
        } catch (error) {
          if (error instanceof Complaint && error.status === 404) gone(); // it may come back, or be about to begin
        }
        if (!isOver) await new Promise((resume) => setTimeout(resume, 1000));
      }
    };
    // A hidden tab gives its connection back: a browser has only a few for each server.
    const turned = (): void => {
      stop.abort();
      stop = new AbortController();
      if (!document.hidden) void listen();
    };
    document.addEventListener("visibilitychange", turned);
    void listen();
    return () => {
      isOver = true;
      document.removeEventListener("visibilitychange", turned);
      stop.abort();
    };
  }

  async ask(path: string): Promise<unknown> {
    return this.get(path);
  }

  /** The answer's text, for a tab of its own. */
  async text(path: string): Promise<string> {
    return JSON.stringify(await this.get(path), null, 1);
  }

  /** The same object as last time where the same is told, which the server does not send again. */
  private async get(path: string): Promise<unknown> {
    const known = this.last.get(path);
    const answer = await this.open(path, {}, known === undefined ? {} : { "if-none-match": known.tag });
    if (answer.status === 304 && known !== undefined) return known.content;
    const content: unknown = await answer.json();
    this.last.delete(path);
    const tag = answer.headers.get("etag");
    if (tag !== null) this.last.set(path, { tag, content });
    const [oldest] = this.last.keys();
    if (this.last.size > MOST_KEPT && oldest !== undefined) this.last.delete(oldest);
    return content;
  }

  private async send(path: string, options: RequestInit): Promise<unknown> {
    return (await this.open(path, options)).json();
  }

  private async open(path: string, options: RequestInit, more: Record<string, string> = {}): Promise<Response> {
    const headers = { ...more, authorization: `Bearer ${this.token}`, "content-type": "application/json" };
    let answer: Response;
    try {
      answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new Complaint("the server does not answer", "is `stethos serve` still running?", 0);
    }
    if (answer.ok || answer.status === 304) return answer;
    const told = (await answer.json().catch(() => ({}))) as { error?: string; hint?: string };
    throw new Complaint(told.error ?? `the server said ${answer.status}`, told.hint ?? "", answer.status);
  }
}

/** Server-Sent Events from a response; EventSource cannot send a token. */
async function read(answer: Response, told: (event: string, data: string) => void): Promise<void> {
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (reader === undefined) return;
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const lines = part.split("\n");
      const data = lines.find((line) => line.startsWith("data: "));
      const event = lines.find((line) => line.startsWith("event: "));
      if (data !== undefined) told(event?.slice(7) ?? "message", data.slice(6));
    }
  }
}

interface Carried {
  catalogue: Catalogue;
  run: string;
  made_ns: string;
  /** What a reader has to know about the report itself: what was thinned or left out. */
  notes: string[];
  /** What whoever composed it wrote. */
  text?: string;
  panels: { panel: string; given: Given; columns: Columns }[];
  findings: Diagnosis;
}

/** A report: what was put into the page when it was made. */
export class Report implements Source {
  readonly isReport = true;
  private readonly panels: Map<string, Columns>;

  constructor(readonly carried: Carried) {
    this.panels = new Map(carried.panels.map(({ panel, given, columns }) => [this.key(panel, given), columns]));
  }

  /** The report in this document, if it is one. */
  static find(): Report | null {
    const element = document.getElementById("stethos-report");
    return element === null ? null : new Report(JSON.parse(element.textContent ?? "{}") as Carried);
  }

  async catalogue(): Promise<Catalogue> {
    return this.carried.catalogue;
  }

  async runs(): Promise<RunRow[]> {
    return [];
  }

  async compare(): Promise<Comparison> {
    throw new Complaint("a report is of one run", "compare with `stethos serve`", 404);
  }

  async panel(_run: string, panel: string, given: Given): Promise<Columns> {
    const found = this.panels.get(this.key(panel, given));
    if (found === undefined) throw new Complaint("not part of this report", "open the run with `stethos serve`", 404);
    return found;
  }

  /** What can be chosen here: what was carried along. */
  async values(_run: string, panel: string, parameter: string): Promise<string[]> {
    const given = this.carried.panels.filter((one) => one.panel === panel).map((one) => one.given[parameter] ?? "");
    return [...new Set(given)].filter((value) => value !== "");
  }

  async findings(): Promise<Diagnosis> {
    return this.carried.findings;
  }

  async sql(): Promise<Columns> {
    throw new Complaint("a report cannot be asked", "open the run with `stethos serve`", 404);
  }

  async stacks(): Promise<unknown> {
    throw new Complaint("a report is not live", "", 404);
  }

  async own(): Promise<Own> {
    return { panels: [], views: [], errors: [] };
  }

  async saveOwn(): Promise<Own> {
    throw new Complaint("a report cannot be changed", "open the run with `stethos serve`", 404);
  }

  follow(): () => void {
    return () => undefined;
  }

  /** The same for every way to say the same: parameters sorted, those that are as by default left out. */
  private key(panel: string, given: Given): string {
    const parameters = this.carried.catalogue.panels.find((one) => one.name === panel)?.parameters ?? [];
    const usual = (name: string): string | undefined => Object.keys(parameters.find((one) => one.name === name)?.options ?? {})[0];
    const told = Object.entries(given).filter(([name, value]) => value !== "" && value !== usual(name));
    return JSON.stringify([panel, ...told.sort(([a], [b]) => (a < b ? -1 : 1))]);
  }
}
