// What is shown stands in the address, so that it can be sent to somebody.
import { useEffect, useState } from "preact/hooks";
import type { Given } from "./model";

export interface Route {
  page: string;
  run: string;
  given: Given;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  const parts = path.split("/").filter((part) => part !== "").map(decode);
  const given = Object.fromEntries(new URLSearchParams(query));
  if (parts[0] === "run" && parts[1] !== undefined) return { page: parts[2] ?? "overview", run: parts[1], given };
  return { page: parts[0] ?? "runs", run: "", given };
}

export function address(route: Route): string {
  const path = route.run === "" ? `/${route.page}` : `/run/${encodeURIComponent(route.run)}/${route.page}`;
  const query = new URLSearchParams(Object.entries(route.given).filter(([, value]) => value !== "")).toString();
  return `#${path}${query === "" ? "" : `?${query}`}`;
}

export function go(route: Route, isReplacing = false): void {
  if (isReplacing) {
    history.replaceState(null, "", address(route));
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address(route);
  }
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = (): void => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** What is shown of an x axis, as the address has it; null is all. */
export function zoomOf(given: Given, x: string): [number, number] | null {
  const parts = (given[`zoom-${x}`] ?? "").split("..").map(Number);
  return parts.length === 2 && parts.every(Number.isFinite) && (parts[0] as number) < (parts[1] as number) ? (parts as [number, number]) : null;
}

export function zoomed(given: Given, x: string, range: [number, number] | null): Given {
  return { ...given, [`zoom-${x}`]: range === null ? "" : range.map((value) => Number(value.toPrecision(13))).join("..") };
}
