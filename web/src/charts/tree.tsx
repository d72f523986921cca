// Stacks of several processes, merged into one tree: where all are together, and where their ways part.
import { column, number, type Columns, type Panel } from "../model";

export interface Frame {
  func?: string;
  file?: string;
  lineno?: number | null;
  members: string[];
  children: Frame[];
}

export function Tree({ panel, columns }: { panel: Panel; columns: Columns }) {
  return <Branches frames={merged(panel, columns).children} />;
}

export function Branches({ frames }: { frames: Frame[] }) {
  return (
    <div class="tree">
      {frames.map((one) => (
        <Branch key={keyOf(one)} frame={one} above={[]} />
      ))}
    </div>
  );
}

/** One tree of frames; the rows of each member go from the outermost call to the innermost. */
function merged(panel: Panel, columns: Columns): Frame {
  const root: Frame = { members: [], children: [] };
  const [func = [], file = [], lineno = []] = panel.y.map((name) => column(columns, name));
  const ends = new Map<string, Frame>();
  column(columns, panel.by).forEach((value, row) => {
    const member = String(value);
    const place = { func: String(func[row] ?? ""), file: String(file[row] ?? ""), lineno: number(lineno[row]) };
    const above = ends.get(member) ?? root;
    let below = above.children.find((one) => keyOf(one) === keyOf(place));
    if (below === undefined) {
      below = { ...place, members: [], children: [] };
      above.children.push(below);
    }
    below.members.push(member);
    ends.set(member, below);
  });
  return root;
}

function keyOf(frame: { func?: string; file?: string; lineno?: number | null }): string {
  return `${frame.file}:${frame.lineno}:${frame.func}`;
}

/** One way through the code; it is only indented where ways part. */
function Branch({ frame, above }: { frame: Frame; above: string[] }) {
  const isSame = frame.members.join() === above.join();
  const [only] = frame.children;
  const goesOn = frame.children.length === 1 && only !== undefined && only.members.length === frame.members.length;
  return (
    <div class={isSame ? "" : "branch"}>
      <code title={frame.file}>
        <b>{frame.func}</b>{" "}
        <span class="muted">
          {frame.file?.split("/").slice(-2).join("/")}
          {frame.lineno != null && `:${frame.lineno}`}
        </span>{" "}
        {!isSame && <span class="chip">{frame.members.join(", ")}</span>}
      </code>
      {goesOn ? <Branch frame={only} above={frame.members} /> : frame.children.map((one) => <Branch key={keyOf(one)} frame={one} above={frame.members} />)}
    </div>
  );
}
