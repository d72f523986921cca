// Read-only links that last: made, copied and taken back here. And how far a live run is.
import { useEffect, useRef, useState } from "preact/hooks";
import { useAround, usePanel } from "../context";
import { ago, duration, label, plain } from "../format";
import { column, number } from "../model";
import { Trouble } from "../panel";
import { Complaint, Server } from "../source";

interface Link {
  id: string;
  note: string;
  made_ns: string;
  token?: string;
}

export function Share() {
  const { source, catalogue } = useAround();
  const frame = useRef<HTMLDialogElement>(null);
  const [isOpen, setOpen] = useState(false);
  const [links, setLinks] = useState<Link[]>([]);
  const [note, setNote] = useState("");
  const [made, setMade] = useState("");
  const [said, setSaid] = useState("");
  const [complaint, setComplaint] = useState<Complaint | null>(null);
  const mayEdit = catalogue.may?.includes("edit") ?? false;
  const attempt = async (work: (server: Server) => Promise<void>): Promise<void> => {
    if (!(source instanceof Server)) return;
    try {
      await work(source);
      setLinks(((await source.ask("/api/links")) as { links: Link[] }).links);
      setComplaint(null);
    } catch (error) {
      setComplaint(error instanceof Complaint ? error : new Complaint(String(error), "", 0));
    }
  };
  useEffect(() => {
    if (!isOpen) return;
    frame.current?.showModal();
    void attempt(async () => undefined);
  }, [isOpen]);
  if (source.isReport) return null;
  const add = (event: Event): void => {
    event.preventDefault();
    void attempt(async (server) => {
      const link = (await server.post("/api/links/new", { note })) as Link;
      setMade(`${location.origin}/#${new URLSearchParams({ token: link.token ?? "", to: location.hash.replace(/^#/, "") }).toString()}`);
      setNote("");
      setSaid("");
    });
  };
  const copy = (): void => void navigator.clipboard?.writeText(made).then(() => setSaid("copied"));
  if (!mayEdit) {
    const own = (): void => void navigator.clipboard?.writeText(location.href).then(() => setSaid("copied"));
    return <button type="button" class="quiet" title="for those who have the token" onClick={own}>{said === "" ? "Copy address" : said}</button>;
  }
  return (
    <>
      <button type="button" class="quiet" onClick={() => setOpen(true)}>Share</button>
      {isOpen && (
        <dialog ref={frame} class="card labels" aria-label="Share" onClose={() => { setOpen(false); setMade(""); }}>
          <h2>Read-only links</h2>
          <p class="note">A link shows everything here and changes nothing. It lasts until you revoke it.</p>
          <form class="save-view" onSubmit={add}>
            <label><span class="sr-only">For whom</span><input maxLength={200} placeholder="for whom" value={note} onInput={(event) => setNote(event.currentTarget.value)} /></label>
            <button type="submit" class="button">Make a link</button>
          </form>
          {made !== "" && (
            <p class="made-link">
              <input readOnly aria-label="The new link" value={made} onFocus={(event) => event.currentTarget.select()} />{" "}
              <button type="button" class="button" onClick={copy}>{said === "" ? "Copy" : said}</button>
            </p>
          )}
          {complaint !== null && <Trouble complaint={complaint} />}
          <ul class="plain views">
            {links.map((one) => (
              <li key={one.id}>
                {one.note === "" ? one.id : label(one.note)} <span class="muted">{ago(Number(one.made_ns))}</span>{" "}
                <button type="button" aria-label={`revoke ${label(one.note)} ${one.id}`} onClick={() => void attempt((server) => server.post("/api/links/revoke", { id: one.id }).then(() => undefined))}>revoke</button>
              </li>
            ))}
          </ul>
          <p><button type="button" class="button" onClick={() => frame.current?.close()}>Close</button></p>
        </dialog>
      )}
    </>
  );
}

/** How far a live run is, how long it goes on, and when it was heard of last. */
export function Progress({ run, version }: { run: string; version: string }) {
  const { answer } = usePanel(run, "progress", {}, version);
  const heard = useRef(Date.now());
  const [, tick] = useState(0);
  useEffect(() => {
    heard.current = Date.now();
  }, [version]);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && tick((before) => before + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  const at = (name: string): number | null => (answer === null ? null : number(column(answer, name)[0] ?? null));
  const [done, total, part, left] = [at("done"), at("total"), at("share"), at("left_ms")];
  const unit = answer === null ? "" : String(column(answer, "unit")[0] ?? "");
  const seconds = Math.round((Date.now() - heard.current) / 1000);
  return (
    <span class="progress">
      {done !== null && total !== null && part !== null && (
        <>
          <progress aria-label="Progress" max={1} value={part} /> {unit} {plain(done)} of {plain(total)}
          {left !== null && part < 1 && <> · about {duration(left)} left</>} ·{" "}
        </>
      )}
      <span>updated {seconds < 5 ? "just now" : ago(Date.now() * 1e6 - seconds * 1e9)}</span>
    </span>
  );
}
