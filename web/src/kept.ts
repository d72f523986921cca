// What the browser remembers for us. Where it must not, as in the preview of a mail, nothing is remembered.

export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A page that may not remember works all the same.
  }
}

export function kept(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}
