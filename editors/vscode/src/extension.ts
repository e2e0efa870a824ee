/** Wires the parts together: one language server, one status bar item, the commands. */
import * as vscode from "vscode";
import { registerEdits } from "./edits";
import { NextEditHint } from "./hint";
import { registerPromptView } from "./prompt";
import { Server } from "./server";
import { StatusItem } from "./status";

let server: Server | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const log = vscode.window.createOutputChannel("Draftline", { log: true });
  const status = new StatusItem();
  const hint = new NextEditHint();
  const running = (server = new Server(log, status, hint));
  context.subscriptions.push(
    log,
    status,
    hint,
    vscode.commands.registerCommand("draftline.restart", () => running.restart()),
    vscode.commands.registerCommand("draftline.toggle", toggle),
    vscode.commands.registerCommand("draftline.showLog", () => log.show()),
    vscode.commands.registerCommand("draftline.dismiss", () => running.dismiss()),
    vscode.commands.registerCommand("draftline.menu", menu),
    vscode.workspace.onDidChangeConfiguration((change) => running.configurationChanged(change)),
    registerPromptView(running),
    registerEdits(running),
  );
  status.switchedOn(isOn());
  await running.start();
}

export async function deactivate(): Promise<void> {
  await server?.stop();
}

export function isOn(): boolean {
  return vscode.workspace.getConfiguration("draftline").get("enable", true);
}

async function toggle(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("draftline");
  await settings.update("enable", !isOn(), vscode.ConfigurationTarget.Global);
}

/** What a click on the status bar item offers. */
async function menu(): Promise<void> {
  const offered = [
    { label: isOn() ? "Switch off" : "Switch on", command: "draftline.toggle" },
    { label: "Edit the selected lines", command: "draftline.editSelection" },
    { label: "Show the exact prompt for the cursor", command: "draftline.showPrompt" },
    { label: "Show log", command: "draftline.showLog" },
    { label: "Restart the language server", command: "draftline.restart" },
    { label: "Settings", command: "draftline.openSettings" },
  ];
  const chosen = await vscode.window.showQuickPick(offered, { title: "Draftline" });
  if (chosen?.command === "draftline.openSettings") {
    await vscode.commands.executeCommand("workbench.action.openSettings", "draftline");
  } else if (chosen) {
    await vscode.commands.executeCommand(chosen.command);
  }
}
