/** A word behind the cursor's line: the last change applies elsewhere in the document too. */
import * as vscode from "vscode";

/** `draftline/nextEditAvailable`; docs/language-server.md describes it. */
export interface NextEditTold {
  uri: string;
  version: number;
  places: number;
  detail: string;
}

export class NextEditHint implements vscode.Disposable {
  private readonly decoration = vscode.window.createTextEditorDecorationType({
    after: { color: new vscode.ThemeColor("editorCodeLens.foreground"), margin: "0 0 0 2em" },
  });
  private readonly listening = vscode.workspace.onDidChangeTextDocument(({ document }) => this.clear(document));

  told({ uri, version, places, detail }: NextEditTold): void {
    const editor = vscode.window.activeTextEditor;
    if (!editor || editor.document.uri.toString() !== vscode.Uri.parse(uri).toString()) {
      return;
    }
    if (places === 0 || editor.document.version !== version) {
      editor.setDecorations(this.decoration, []);
      return;
    }
    const { range } = editor.document.lineAt(editor.selection.active.line);
    const contentText = `${detail}: ${places} more, Ctrl+Alt+N`;
    const end = new vscode.Range(range.end, range.end);
    editor.setDecorations(this.decoration, [{ range: end, renderOptions: { after: { contentText } } }]);
  }

  dispose(): void {
    this.listening.dispose();
    this.decoration.dispose();
  }

  private clear(document: vscode.TextDocument): void {
    for (const editor of vscode.window.visibleTextEditors.filter((one) => one.document === document)) {
      editor.setDecorations(this.decoration, []);
    }
  }
}
