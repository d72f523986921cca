// What every part of the page may need: where the numbers come from, and what is being looked at.
import { createContext } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import type { Catalogue, Columns, Diagnosis, Given, RunRow } from "./model";
import { Complaint, type Source } from "./source";

export interface Surroundings {
  source: Source;
  catalogue: Catalogue;
  theme: string;
}

export const Around = createContext<Surroundings | null>(null);

export function useAround(): Surroundings {
  const around = useContext(Around);
  if (around === null) throw new Error("outside of the application");
  return around;
}

export interface Asked<Answer> {
  answer: Answer | null;
  complaint: Complaint | null;
  isAsking: boolean;
}

/**
 * Ask when `key` changes, or the `version` of what is asked about; the last answer stays until the next one is there.
 * Of one key only one question is under way at a time: a run that changes faster than it can be read is still seen.
 */
export function useAsked<Answer>(ask: () => Promise<Answer>, key: string, version = ""): Asked<Answer> {
  const [asked, setAsked] = useState<Asked<Answer>>({ answer: null, complaint: null, isAsking: true });
  const latest = useRef({ ask, version });
  latest.current = { ask, version };
  const course = useRef<{ key: string; isUnderWay: boolean; seen: string | null }>({ key, isUnderWay: false, seen: null });

  const begin = (mine: { key: string; isUnderWay: boolean; seen: string | null }): void => {
    mine.isUnderWay = true;
    mine.seen = latest.current.version;
    const end = (change: (before: Asked<Answer>) => Asked<Answer>): void => {
      mine.isUnderWay = false;
      if (course.current !== mine) return;
      setAsked(change);
      if (mine.seen !== latest.current.version) begin(mine);
    };
    latest.current.ask().then(
      (answer) => end(() => ({ answer, complaint: null, isAsking: false })),
      (error: unknown) => {
        const complaint = error instanceof Complaint ? error : new Complaint(String(error), "", 0);
        end((before) => ({ ...before, complaint, isAsking: false }));
      },
    );
  };

  useEffect(() => {
    const isFirst = course.current.seen === null && !course.current.isUnderWay;
    if (course.current.key !== key || isFirst) {
      course.current = { key, isUnderWay: false, seen: null };
      setAsked((before) => ({ ...before, isAsking: true }));
      begin(course.current);
    } else if (!course.current.isUnderWay && course.current.seen !== version) {
      begin(course.current);
    }
  }, [key, version]);
  useEffect(
    () => () => {
      course.current = { key: "", isUnderWay: true, seen: null };
    },
    [],
  );
  return asked;
}

const LATER_MS = 60;

/** The value as it was a moment ago: for what is costly to draw and may follow behind. */
export function useLater<Value>(value: Value, ms = LATER_MS): Value {
  const [later, setLater] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLater(value), ms);
    return () => clearTimeout(timer);
  }, [value]);
  return later;
}

/** The version of a run, renewed whenever the run changes. */
export function useVersion(run: string): { version: string; isGone: boolean } {
  const { source } = useAround();
  const [state, setState] = useState({ version: "", isGone: false });
  useEffect(() => {
    setState({ version: "", isGone: false });
    if (run === "") return undefined;
    return source.follow(
      run,
      (version) => setState({ version, isGone: false }),
      () => setState((before) => ({ ...before, isGone: true })),
    );
  }, [run, source]);
  return state;
}

export function usePanel(run: string, panel: string, given: Given, version: string): Asked<Columns> {
  const { source } = useAround();
  return useAsked(() => source.panel(run, panel, given), JSON.stringify([run, panel, given]), rowsOf(version));
}

export function useDiagnosis(run: string, version: string): Asked<Diagnosis> {
  const { source } = useAround();
  return useAsked(() => source.findings(run), run, version);
}

const AGAIN_MS = 2500;

/** Every run, looked at again and again while the page is in sight. */
export function useRuns(): Asked<RunRow[]> & { again: () => void } {
  const { source } = useAround();
  const [turn, setTurn] = useState(0);
  const again = (): void => setTurn((before) => before + 1);
  const asked = useAsked(() => source.runs(), "runs", String(turn));
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && again(), AGAIN_MS);
    return () => clearInterval(timer);
  }, []);
  return { ...asked, again };
}

/** What changes when one of these runs goes on: nothing does in one that is over. */
export function courseOf(rows: RunRow[]): string {
  return rows.map((row) => (row.state === "running" ? `${row.steps} ${row.last_round} ${row.rows_stored}` : row.state)).join();
}

/** Panels do not change when only the diagnosis does. */
function rowsOf(version: string): string {
  return version === "" ? "" : ((JSON.parse(version) as { version?: string }).version ?? version);
}
