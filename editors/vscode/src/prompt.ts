/** "Show the exact prompt": what the server would send to the engine for the cursor, with the source of each part. */
import * as vscode from "vscode";
import type { Server } from "./server";

const SCHEME = "draftline-prompt";

interface Segment {
  role: string;
  source: string;
  path: string | null;
  text: string;
}

type Prompt = { version: number; max_tokens: number; segments: Segment[] } | { reason: string; detail: string };

export function registerPromptView(server: Server): vscode.Disposable {
  const changed = new vscode.EventEmitter<vscode.Uri>();
  let shown = "";
  const provider = { onDidChange: changed.event, provideTextDocumentContent: () => shown };
  const uri = vscode.Uri.from({ scheme: SCHEME, path: "Draftline prompt" });

  async function show(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (!editor || editor.document.uri.scheme === SCHEME) {
      void vscode.window.showInformationMessage("Draftline: open a file and put the cursor where the prompt is wanted.");
      return;
    }
    const { document, selection } = editor;
    try {
      const prompt = await server.request<Prompt>("draftline/prompt", {
        textDocument: { uri: document.uri.toString() },
        position: { line: selection.active.line, character: selection.active.character },
      });
      const place = `${vscode.workspace.asRelativePath(document.uri)}:${selection.active.line + 1}:${selection.active.character + 1}`;
      shown = describe(prompt, place);
    } catch (error) {
      void vscode.window.showErrorMessage(`Draftline: ${error instanceof Error ? error.message : String(error)}`);
      return;
    }
    changed.fire(uri);
    const view = await vscode.workspace.openTextDocument(uri);
    await vscode.window.showTextDocument(view, { viewColumn: vscode.ViewColumn.Beside, preview: true, preserveFocus: true });
  }

  return vscode.Disposable.from(
    changed,
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, provider),
    vscode.commands.registerCommand("draftline.showPrompt", show),
  );
}

function describe(prompt: Prompt, place: string): string {
  if (!("segments" in prompt)) {
    return `${place}: no engine would be asked here (${prompt.reason}): ${prompt.detail}\n`;
  }
  const parts = prompt.segments.map((part, index) => {
    const path = part.path ? `, ${part.path}` : "";
    return `=== ${index + 1}. ${part.role}, from: ${part.source}${path} (${part.text.length} characters)\n${part.text}\n`;
  });
  const count = prompt.segments.length;
  return `${place}, version ${prompt.version}: ${count} parts, at most ${prompt.max_tokens} tokens in answer\n\n${parts.join("\n")}`;
}
