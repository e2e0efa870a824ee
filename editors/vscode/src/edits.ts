/** Edits with an instruction: asks the server, and shows the diff while it is written, or the text of an answer. */
import * as vscode from "vscode";
import { DiffView, type Written } from "./diff";
import type { Hunk } from "./hunks";
import type { Server } from "./server";

const REQUEST = "draftline/edit";

/** The argument of the server's code actions, and what the request takes. */
interface Asked {
  kind: "edit" | "fix" | "docstring" | "tests" | "explain";
  textDocument: { uri: string; version: number | null };
  range: { start: Place; end: Place };
  instruction: string;
}

interface Place {
  line: number;
  character: number;
}

interface Answer extends Written {
  reason: string;
  detail: string;
  text: string;
}

type Progress = { hunks?: Hunk[]; text?: string };

export function registerEdits(server: Server): vscode.Disposable {
  const view = new DiffView();

  async function editSelection(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (!editor) {
      void vscode.window.showInformationMessage("Draftline: open a file and select what is to be edited.");
      return;
    }
    const { document, selection } = editor;
    await run({
      kind: "edit",
      textDocument: { uri: document.uri.toString(), version: document.version },
      range: { start: place(selection.start), end: place(selection.end) },
      instruction: "",
    });
  }

  async function run(asked: Asked): Promise<void> {
    if (asked.kind === "edit" && !asked.instruction) {
      const given = await vscode.window.showInputBox({
        title: "Draftline: Edit Selection",
        prompt: "What is to be done with the selected lines?",
      });
      if (!given?.trim()) {
        return;
      }
      asked = { ...asked, instruction: given };
    }
    const document = await vscode.workspace.openTextDocument(vscode.Uri.parse(asked.textDocument.uri));
    const isText = asked.kind === "explain" || asked.kind === "tests";
    const title = `Draftline: ${isText ? "answering" : "editing"}…`;
    const options = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
    await vscode.window.withProgress(options, async (progress, cancelled) => {
      const source = new vscode.CancellationTokenSource();
      cancelled.onCancellationRequested(() => source.cancel());
      const shown = isText ? undefined : view.begin(document, () => source.cancel());
      const close = (): void => shown && view.close(shown);
      const told = (value: Progress): void => {
        if (shown && value.hunks) {
          void view.update(shown, { hunks: value.hunks, edits: [] }, false);
        } else if (value.text) {
          progress.report({ message: `${value.text.length} characters` });
        }
      };
      try {
        const answer = await server.requestInParts<Answer, Progress>(REQUEST, asked, told, source.token);
        if (answer.reason === "ready" && shown) {
          await view.update(shown, answer, true);
        } else if (answer.reason === "ready") {
          await showText(answer.text);
        } else {
          close();
          tell(answer);
        }
      } catch (error) {
        close();
        if (!source.token.isCancellationRequested) {
          void vscode.window.showErrorMessage(`Draftline: ${error instanceof Error ? error.message : String(error)}`);
        }
      } finally {
        source.dispose();
      }
    });
  }

  /** Where the last change is to be repeated. */
  async function nextEdit(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (!editor) {
      return;
    }
    const { document, selection } = editor;
    const shown = view.begin(document, () => undefined);
    try {
      const answer = await server.request<Answer>("draftline/nextEdit", {
        textDocument: { uri: document.uri.toString() },
        position: place(selection.active),
      });
      if (answer.reason === "ready") {
        await view.update(shown, answer, true);
        return;
      }
      tell(answer);
    } catch (error) {
      void vscode.window.showErrorMessage(`Draftline: ${error instanceof Error ? error.message : String(error)}`);
    }
    view.close(shown);
  }

  return vscode.Disposable.from(
    view,
    vscode.commands.registerCommand("draftline.nextEdit", nextEdit),
    vscode.commands.registerCommand("draftline.editSelection", editSelection),
    vscode.commands.registerCommand("draftline.ui.edit", run),
  );
}

async function showText(content: string): Promise<void> {
  const document = await vscode.workspace.openTextDocument({ language: "markdown", content: `${content}\n` });
  await vscode.window.showTextDocument(document, { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true });
}

function tell({ reason, detail }: Answer): void {
  const words = `Draftline: ${detail || reason}`;
  if (["unchanged", "cancelled", "none"].includes(reason)) {
    void vscode.window.showInformationMessage(words);
  } else {
    void vscode.window.showWarningMessage(words);
  }
}

function place({ line, character }: vscode.Position): Place {
  return { line, character };
}
