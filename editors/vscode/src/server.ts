/** The language server's process and the client that talks to it. */
import * as vscode from "vscode";
import {
  CloseAction,
  ErrorAction,
  LanguageClient,
  ProgressType,
  State,
  type Middleware,
  type StaticFeature,
} from "vscode-languageclient/node";
import { isOn } from "./extension";
import type { NextEditHint, NextEditTold } from "./hint";
import { serverCommand, serverSettings } from "./settings";
import type { StatusItem, Told } from "./status";

/** A server that ends by itself is started again so many times within SPAN_MS, then it is left alone. */
const RESTARTS = 3;
const SPAN_MS = 180_000;

/** Says that edits are shown here, so that the server's code actions come to the extension's own command. */
const showsEdits: StaticFeature = {
  fillClientCapabilities: (capabilities) => {
    capabilities.experimental = { ...capabilities.experimental, draftline: { edits: true } };
  },
  initialize: () => undefined,
  getState: () => ({ kind: "static" }),
  clear: () => undefined,
};

export class Server {
  private client: LanguageClient | undefined;
  private ends: number[] = [];
  private shown: string | undefined;
  private requests = 0;
  /** Starts and stops come one after the other. */
  private queue: Promise<void> = Promise.resolve();

  constructor(
    private readonly log: vscode.LogOutputChannel,
    private readonly status: StatusItem,
    private readonly hint: NextEditHint,
  ) {}

  start(): Promise<void> {
    return this.inTurn(() => this.begin());
  }

  stop(): Promise<void> {
    return this.inTurn(() => this.end());
  }

  restart(): Promise<void> {
    this.ends = [];
    return this.inTurn(async () => {
      await this.end();
      await this.begin();
    });
  }

  async request<Result>(method: string, params: unknown): Promise<Result> {
    if (this.client?.state !== State.Running) {
      throw new Error("the language server isn't running");
    }
    return await this.client.sendRequest<Result>(method, params);
  }

  /** A request whose answer comes in parts too. told: called with each of them. */
  async requestInParts<Result, Part>(
    method: string,
    params: object,
    told: (part: Part) => void,
    token: vscode.CancellationToken,
  ): Promise<Result> {
    const client = this.client;
    if (client?.state !== State.Running) {
      throw new Error("the language server isn't running");
    }
    const partialResultToken = `${method}-${++this.requests}`;
    const parts = client.onProgress(new ProgressType<Part>(), partialResultToken, told);
    try {
      return await client.sendRequest<Result>(method, { ...params, partialResultToken }, token);
    } finally {
      parts.dispose();
    }
  }

  /** Hide the ghost text, and have the server offer nothing here until the text changes. */
  async dismiss(): Promise<void> {
    await vscode.commands.executeCommand("editor.action.inlineSuggest.hide");
    if (this.shown !== undefined && this.client?.state === State.Running) {
      await this.client.sendNotification("draftline/didDismiss", { id: this.shown });
    }
  }

  configurationChanged(change: vscode.ConfigurationChangeEvent): void {
    if (!change.affectsConfiguration("draftline")) {
      return;
    }
    this.status.switchedOn(isOn());
    if (change.affectsConfiguration("draftline.command")) {
      void this.restart();
    } else if (this.client?.state === State.Running) {
      void this.client.sendNotification("workspace/didChangeConfiguration", { settings: serverSettings() });
    }
  }

  private inTurn(work: () => Promise<void>): Promise<void> {
    this.queue = this.queue.then(work).catch((error: unknown) => this.log.error(text(error)));
    return this.queue;
  }

  private async begin(): Promise<void> {
    const command = serverCommand();
    if (typeof command === "string") {
      this.failed(command);
      return;
    }
    this.status.server("starting");
    const [program, ...args] = command;
    const client: LanguageClient = new LanguageClient(
      "draftline",
      "Draftline",
      { command: program, args },
      {
        documentSelector: [{ scheme: "file" }, { scheme: "untitled" }, { notebook: "*" }],
        outputChannel: this.log,
        initializationOptions: serverSettings,
        initializationFailedHandler: () => false,
        middleware: this.middleware(),
        errorHandler: {
          error: () => ({ action: ErrorAction.Continue, handled: true }),
          closed: () => this.closed(client),
        },
      },
    );
    client.registerFeature(showsEdits);
    client.onNotification("draftline/nextEditAvailable", (found: NextEditTold) => this.hint.told(found));
    client.onNotification("draftline/status", (told: Told) => this.status.told(told));
    client.onDidChangeState(({ newState }) => {
      if (this.client === client && newState === State.Running) {
        this.status.server("running");
      }
    });
    this.client = client;
    try {
      await client.start();
      this.log.info(`started ${command.join(" ")}`);
    } catch (error) {
      this.client = undefined;
      this.log.error(text(error));
      this.failed(
        `Draftline can't start its language server with \`${command.join(" ")}\`. Install Draftline, or set ` +
          "draftline.command to where it is, as a list: [\"/path/to/.venv/bin/draftline\", \"lsp\"].",
      );
    }
  }

  private async end(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    this.shown = undefined;
    if (client?.state === State.Running || client?.state === State.Starting) {
      await client.stop(5000);
    }
    this.status.server("stopped");
  }

  /** The process ended and nobody asked for it. */
  private closed(client: LanguageClient): { action: CloseAction; handled: boolean } {
    if (this.client !== client || client.state === State.Starting) {
      return { action: CloseAction.DoNotRestart, handled: true };
    }
    const now = Date.now();
    this.ends = [...this.ends.filter((end) => now - end < SPAN_MS), now];
    if (this.ends.length <= RESTARTS) {
      this.log.warn("the language server ended; it is started again");
      this.status.server("starting");
      return { action: CloseAction.Restart, handled: true };
    }
    this.failed(`Draftline's language server ended ${this.ends.length} times within three minutes.`);
    return { action: CloseAction.DoNotRestart, handled: true };
  }

  private failed(message: string): void {
    this.log.error(message);
    this.status.server("failed", message);
    void this.offerWaysOut(message);
  }

  private async offerWaysOut(message: string): Promise<void> {
    const chosen = await vscode.window.showErrorMessage(message, "Open Settings", "Show Log", "Try Again");
    if (chosen === "Open Settings") {
      await vscode.commands.executeCommand("workbench.action.openSettings", "draftline.command");
    } else if (chosen === "Show Log") {
      this.log.show();
    } else if (chosen === "Try Again") {
      await this.restart();
    }
  }

  private middleware(): Middleware {
    return {
      provideInlineCompletionItems: async (document, position, context, token, next) => {
        const several = vscode.window.activeTextEditor;
        if (!isOn() || (several?.document === document && several.selections.length > 1)) {
          return [];
        }
        const answer = await this.status.during(Promise.resolve(next(document, position, context, token)));
        const items = Array.isArray(answer) ? answer : answer?.items;
        this.shown = items?.[0]?.command?.arguments?.[0]?.id;
        return answer;
      },
      provideCompletionItem: (document, position, context, token, next) =>
        isOn() ? next(document, position, context, token) : [],
    };
  }
}

function text(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
