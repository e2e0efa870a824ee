/** Changes of lines, as `draftline/edit` has them. */

/** Lines start to end - 1, from 0, become `lines`. */
export interface Hunk {
  start: number;
  end: number;
  lines: string[];
}

/** One hunk as the protocol's edit. */
export interface Edit {
  range: { start: Place; end: Place };
  newText: string;
}

interface Place {
  line: number;
  character: number;
}

/** The text's lines with the hunks in them. */
export function withHunks(lines: readonly string[], hunks: readonly Hunk[]): string[] {
  const result: string[] = [];
  let at = 0;
  for (const hunk of hunks) {
    result.push(...lines.slice(at, hunk.start), ...hunk.lines);
    at = hunk.end;
  }
  return [...result, ...lines.slice(at)];
}

/** The hunk at a line of the text as it is, or (changed) as it would be; the next one where there is none, else the last. */
export function hunkAt(hunks: readonly Hunk[], line: number, changed: boolean): number {
  let moved = 0;
  for (const [index, hunk] of hunks.entries()) {
    const begin = hunk.start + (changed ? moved : 0);
    const length = changed ? hunk.lines.length : hunk.end - hunk.start;
    if (line <= begin + Math.max(length - 1, 0)) {
      return index;
    }
    moved += hunk.lines.length - (hunk.end - hunk.start);
  }
  return hunks.length - 1;
}

/** Those behind number `index`, once that one is in the text. */
export function moveBehind(hunks: Hunk[], edits: Edit[], index: number): void {
  const taken = hunks[index];
  if (!taken) {
    return;
  }
  const more = taken.lines.length - (taken.end - taken.start);
  for (const hunk of hunks.slice(index + 1)) {
    hunk.start += more;
    hunk.end += more;
  }
  for (const { range } of edits.slice(index + 1)) {
    range.start.line += more;
    range.end.line += more;
  }
}
