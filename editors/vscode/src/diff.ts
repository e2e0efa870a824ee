/**
 * An edit on the screen: VS Code's own diff of the document and of what it would become, while that is being written. New lines
 * can't be drawn between those of a document by any API that is not proposed, and putting them into it would change it.
 */
import * as vscode from "vscode";
import { hunkAt, moveBehind, withHunks, type Edit, type Hunk } from "./hunks";

const SCHEME = "draftline-edit";
const SHOWN = "draftline.editShown";

/** Where an edit came from; `ready` has all of it. */
export interface Written {
  hunks: Hunk[];
  edits: Edit[];
}

export class DiffView implements vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private readonly parts: vscode.Disposable[];
  private shown: Shown | undefined;

  constructor() {
    const provider = { onDidChange: this.changed.event, provideTextDocumentContent: () => this.shown?.text() ?? "" };
    const command = (name: string, act: (shown: Shown) => unknown) =>
      vscode.commands.registerCommand(name, () => this.shown && act(this.shown));
    this.parts = [
      this.changed,
      vscode.workspace.registerTextDocumentContentProvider(SCHEME, provider),
      vscode.workspace.onDidChangeTextDocument((change) => this.documentChanged(change.document)),
      // Closed by the user.
      vscode.window.tabGroups.onDidChangeTabs(() => this.shown?.open && tabs(this.shown).length === 0 && this.close()),
      command("draftline.acceptEdit", () => this.accept()),
      command("draftline.acceptChange", (shown) => this.atCursor(shown, (index) => this.acceptChange(shown, index))),
      command("draftline.rejectChange", (shown) => this.atCursor(shown, (index) => this.leaveOut(shown, index))),
      command("draftline.rejectEdit", () => this.close()),
    ];
  }

  dispose(): void {
    this.close();
    vscode.Disposable.from(...this.parts).dispose();
  }

  /** An edit of the document as it is now begins; one that is shown goes. stop: called when this one goes unfinished. */
  begin(document: vscode.TextDocument, stop: () => void): Shown {
    this.close();
    this.shown = new Shown(document, stop);
    // Before there is anything to see too: the key that rejects is VS Code's own for removing brackets.
    void vscode.commands.executeCommand("setContext", SHOWN, true);
    return this.shown;
  }

  /** What there is of an edit so far. Shows nothing before there is something to see. */
  async update(shown: Shown, { hunks, edits }: Written, ready: boolean): Promise<void> {
    if (this.shown !== shown) {
      return;
    }
    shown.hunks = hunks;
    shown.edits = edits;
    shown.ready = ready;
    this.changed.fire(shown.uri);
    if (!shown.opening && hunks.length > 0) {
      await this.open(shown);
    }
  }

  private async open(shown: Shown): Promise<void> {
    shown.opening = true;
    // By its path alone, the text for a notebook's cell would be JSON, and that for a document without a file plain text.
    const proposed = await vscode.workspace.openTextDocument(shown.uri);
    await vscode.languages.setTextDocumentLanguage(proposed, shown.document.languageId);
    await reveal(shown);
    shown.open = true;
    if (this.shown !== shown) {
      await vscode.window.tabGroups.close(tabs(shown)); // It went while its tab was being opened.
    }
  }

  /** The edit goes, and the document stays as it is. shown: only if it is this one. */
  close(shown = this.shown): void {
    if (!shown || shown !== this.shown) {
      return;
    }
    this.shown = undefined;
    if (!shown.ready) {
      shown.stop();
    }
    void vscode.commands.executeCommand("setContext", SHOWN, false);
    void vscode.window.tabGroups.close(tabs(shown));
  }

  private documentChanged(document: vscode.TextDocument): void {
    const shown = this.shown;
    if (shown?.document === document && document.version !== shown.version && !shown.applying) {
      this.close();
      void vscode.window.showWarningMessage(
        "Draftline: the text has changed: the edit is withdrawn, and the newer text stays as it is.",
      );
    }
  }

  private ready(): boolean {
    if (!this.shown?.ready) {
      void vscode.window.showInformationMessage("Draftline: the edit is still being written.");
    }
    return this.shown?.ready ?? false;
  }

  private async accept(): Promise<void> {
    const shown = this.shown;
    if (!shown || !this.ready()) {
      return;
    }
    if (await shown.apply(shown.edits)) {
      this.close(shown);
    } else {
      this.documentChanged(shown.document);
    }
  }

  private async acceptChange(shown: Shown, index: number): Promise<void> {
    if (await shown.apply(shown.edits.slice(index, index + 1))) {
      moveBehind(shown.hunks, shown.edits, index);
      this.leaveOut(shown, index);
    }
    this.documentChanged(shown.document); // By somebody else, in the meantime.
  }

  private leaveOut(shown: Shown, index: number): void {
    shown.hunks.splice(index, 1);
    shown.edits.splice(index, 1);
    if (shown.hunks.length === 0) {
      this.close(shown);
    } else {
      this.changed.fire(shown.uri);
    }
  }

  /** act: called with the number of the change at the cursor. Where that stands in neither side, the diff is shown instead. */
  private atCursor(shown: Shown, act: (index: number) => unknown): void {
    if (!this.ready()) {
      return;
    }
    const editor = vscode.window.activeTextEditor;
    const changed = editor?.document.uri.toString() === shown.uri.toString();
    if (editor && (changed || editor.document === shown.document)) {
      act(hunkAt(shown.hunks, editor.selection.active.line, changed));
    } else {
      void reveal(shown);
    }
  }
}

/** One edit. version: of the document that it is for. */
export class Shown {
  private static count = 0;
  hunks: Hunk[] = [];
  edits: Edit[] = [];
  ready = false;
  opening = false;
  open = false;
  applying = false;
  version: number;
  readonly uri: vscode.Uri;

  constructor(
    readonly document: vscode.TextDocument,
    readonly stop: () => void,
  ) {
    this.version = document.version;
    // Each has a tab of its own: the one before it may close late.
    this.uri = vscode.Uri.from({ scheme: SCHEME, path: document.uri.path, query: `${++Shown.count}` });
  }

  get title(): string {
    const { uri } = this.document;
    const file = uri.scheme === "vscode-notebook-cell" ? uri.with({ scheme: "file", authority: "", fragment: "" }) : uri;
    return `${vscode.workspace.asRelativePath(file)} (Draftline)`;
  }

  /** What the document would become. */
  text(): string {
    return withHunks(this.document.getText().split(/\r\n|\r|\n/), this.hunks).join("\n");
  }

  /** Put edits into the document, if it is still the one they are for. */
  async apply(edits: readonly Edit[]): Promise<boolean> {
    if (this.document.isClosed || this.document.version !== this.version) {
      return false;
    }
    const change = new vscode.WorkspaceEdit();
    for (const { range, newText } of edits) {
      const { start, end } = range;
      change.replace(
        this.document.uri,
        new vscode.Range(start.line, start.character, end.line, end.character),
        newText,
      );
    }
    this.applying = true;
    try {
      const applied = await vscode.workspace.applyEdit(change);
      this.version += applied ? 1 : 0; // Any other change of the document is not ours.
      return applied;
    } finally {
      this.applying = false;
    }
  }
}

/** Bring the diff to the front. Its tab is no preview: that would take the place of the document's, where that is one. */
async function reveal({ document, uri, title }: Shown): Promise<void> {
  await vscode.commands.executeCommand("vscode.diff", document.uri, uri, title, { preview: false });
}

function tabs({ uri }: Shown): vscode.Tab[] {
  const isOurs = ({ input }: vscode.Tab): boolean =>
    input instanceof vscode.TabInputTextDiff && input.modified.toString() === uri.toString();
  return vscode.window.tabGroups.all.flatMap((group) => group.tabs).filter(isOurs);
}
