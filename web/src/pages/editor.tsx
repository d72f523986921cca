// A field for SQL: coloured, with names of tables and columns offered as one types.
import { useMemo, useRef, useState } from "preact/hooks";
import type { Table } from "../model";

const KEYWORDS = [
  "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "USING", "ON", "AS", "AND", "OR", "NOT", "NULL", "IS", "IN", "BETWEEN", "LIKE", "CASE", "WHEN",
  "THEN", "ELSE", "END", "DISTINCT", "UNION ALL", "WITH", "HAVING", "OVER", "PARTITION BY", "DESC", "ASC", "FILTER", "CAST", "count(*)", "avg(", "min(", "max(", "sum(", "median(",
  "quantile_cont(", "arg_max(", "arg_min(", "round(", "abs(", "coalesce(",
];
const WORDS = new Set(KEYWORDS.flatMap((one) => one.replace(/[(*)]/g, "").toUpperCase().split(" ")));
const TOKEN = /(--[^\n]*)|('(?:[^']|'')*'?)|("(?:[^"]|"")*"?)|(\b\d[\w.]*)|([A-Za-z_]\w*)|([\s\S])/g;
const MOST = 8;

/** What is offered for the word before the cursor: columns of the tables that are named, tables, other columns, words. */
export function offers(text: string, at: number, tables: Table[]): { from: number; names: string[] } {
  const [word = ""] = /[A-Za-z_][\w.]*$/.exec(text.slice(0, at)) ?? [];
  const from = at - word.length;
  if (word === "" || /'[^']*$/.test(text.slice(0, from).replace(/'[^']*'/g, ""))) return { from, names: [] };
  const lower = word.toLowerCase();
  const named = tables.filter((table) => new RegExp(`\\b${table.name}\\b`).test(text));
  const columns = (some: Table[]): string[] => some.flatMap((table) => table.columns.map(([name]) => name));
  const all = [...columns(named), ...tables.map((table) => table.name), ...(named.length === 0 ? columns(tables) : []), ...KEYWORDS];
  const fitting = [...new Set(all)].filter((name) => name.toLowerCase().startsWith(lower) && name.toLowerCase() !== lower);
  return { from, names: fitting.slice(0, MOST) };
}

function Coloured({ text, tables }: { text: string; tables: Table[] }) {
  const names = useMemo(() => new Set(tables.flatMap((table) => [table.name, ...table.columns.map(([name]) => name)])), [tables]);
  const parts: preact.JSX.Element[] = [];
  for (const [whole, comment, string, quoted, digits, word] of text.matchAll(TOKEN)) {
    const kind = comment ? "comment" : string ? "string" : quoted ? "name" : digits ? "digits" : word ? (WORDS.has(word.toUpperCase()) ? "word" : names.has(word) ? "name" : "") : "";
    parts.push(kind === "" ? <>{whole}</> : <span class={`sql-${kind}`}>{whole}</span>);
  }
  return <>{parts}{"\n"}</>;
}

interface Edited {
  text: string;
  setText: (text: string) => void;
  submit: (text: string) => void;
  tables: Table[];
}

export function SqlEditor({ text, setText, submit, tables }: Edited) {
  const field = useRef<HTMLTextAreaElement>(null);
  const behind = useRef<HTMLPreElement>(null);
  const [offered, setOffered] = useState<{ from: number; names: string[] }>({ from: 0, names: [] });
  const [chosen, setChosen] = useState(0);
  const none = { from: 0, names: [] };
  const typed = (): void => {
    const one = field.current;
    if (one === null) return;
    setText(one.value);
    setOffered(offers(one.value, one.selectionStart, tables));
    setChosen(0);
  };
  const take = (name: string): void => {
    const one = field.current;
    if (one === null) return;
    one.setRangeText(name, offered.from, one.selectionStart, "end");
    setText(one.value);
    setOffered(none);
    one.focus();
  };
  const keyed = (event: KeyboardEvent): void => {
    const { names } = offered;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      setOffered(none);
      submit(field.current?.value ?? text);
    } else if (names.length > 0 && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      setChosen((chosen + (event.key === "ArrowDown" ? 1 : names.length - 1)) % names.length);
    } else if (names.length > 0 && (event.key === "Tab" || event.key === "Enter") && !event.shiftKey) {
      take(names[chosen] ?? "");
    } else if (event.key === "Escape" && names.length > 0) {
      setOffered(none);
    } else {
      return;
    }
    event.preventDefault();
  };
  const follow = (): void => {
    if (behind.current !== null && field.current !== null) [behind.current.scrollTop, behind.current.scrollLeft] = [field.current.scrollTop, field.current.scrollLeft];
  };
  return (
    <div class="editor-frame">
      <pre class="editor-colours" ref={behind} aria-hidden="true"><Coloured text={text} tables={tables} /></pre>
      <textarea
        ref={field} class="editor" spellcheck={false} autocomplete="off" autocapitalize="off" aria-label="SQL" rows={Math.min(16, Math.max(5, text.split("\n").length + 1))}
        aria-autocomplete="list" aria-controls="sql-offers" aria-activedescendant={offered.names.length > 0 ? `sql-offer-${chosen}` : undefined}
        value={text} onInput={typed} onKeyDown={keyed} onScroll={follow} onBlur={() => setOffered(none)}
      />
      <ul id="sql-offers" class="offers" role="listbox" aria-label="Names that fit" hidden={offered.names.length === 0}>
        {offered.names.map((name, place) => (
          <li key={name} id={`sql-offer-${place}`} role="option" aria-selected={place === chosen} onMouseDown={(event) => { event.preventDefault(); take(name); }}>{name}</li>
        ))}
      </ul>
    </div>
  );
}
