// What people add to a run, and its end: title, tags, a note, archive, delete.
import { useEffect, useRef, useState } from "preact/hooks";
import { useAround } from "../context";
import { label } from "../format";
import type { RunRow } from "../model";
import { Trouble } from "../panel";
import { Complaint, Server } from "../source";

export function LabelDialog({ row, close }: { row: RunRow; close: () => void }) {
  const { source } = useAround();
  const frame = useRef<HTMLDialogElement>(null);
  const [title, setTitle] = useState(row.title ?? "");
  const [tags, setTags] = useState((row.tags ?? []).join(", "));
  const [note, setNote] = useState(row.note ?? "");
  const [isArchived, setArchived] = useState(row.is_archived ?? false);
  const [confirmed, setConfirmed] = useState("");
  const [complaint, setComplaint] = useState<Complaint | null>(null);
  useEffect(() => frame.current?.showModal(), []);
  const act = async (path: string, body: object): Promise<void> => {
    try {
      if (source instanceof Server) await source.post(`/api/runs/${encodeURIComponent(row.run)}/${path}`, body);
      close();
    } catch (error) {
      setComplaint(error instanceof Complaint ? error : new Complaint(String(error), "", 0));
    }
  };
  const save = (event: Event): void => {
    event.preventDefault();
    void act("labels", { title, tags: tags.split(","), note, is_archived: isArchived, version: row.version ?? 0 });
  };
  return (
    <dialog ref={frame} class="card labels" aria-label={`Edit ${label(row.run)}`} onClose={close}>
      <form onSubmit={save}>
        <h2>{label(row.run)}</h2>
        <label>Title <input value={title} maxLength={100} placeholder={row.run} onInput={(event) => setTitle(event.currentTarget.value)} /></label>
        <label>Tags, with commas <input value={tags} onInput={(event) => setTags(event.currentTarget.value)} /></label>
        <label>Note <textarea rows={4} value={note} maxLength={10_000} onInput={(event) => setNote(event.currentTarget.value)} /></label>
        <label class="check"><input type="checkbox" checked={isArchived} onChange={(event) => setArchived(event.currentTarget.checked)} /> archived</label>
        {complaint !== null && <Trouble complaint={complaint} />}
        <p>
          <button type="submit" class="button">Save</button> <button type="button" class="button is-quiet" onClick={close}>Cancel</button>
        </p>
      </form>
      <details>
        <summary>Delete this run</summary>
        <p class="note">Its directory goes for good. Type its name to confirm.</p>
        <input aria-label="Name of the run to delete" value={confirmed} onInput={(event) => setConfirmed(event.currentTarget.value)} />{" "}
        <button type="button" class="button" disabled={confirmed !== row.run} onClick={() => void act("delete", { name: confirmed })}>Delete</button>
      </details>
    </dialog>
  );
}
