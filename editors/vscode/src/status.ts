/** The status bar item: one line of what the server and the engine are doing, and the last figures. */
import * as vscode from "vscode";

/** `draftline/status`; docs/language-server.md describes it. */
export interface Told {
  state: "loading" | "ready" | "unavailable";
  message: string;
  model: string | null;
  last: Last | null;
}

interface Last {
  reason: string;
  detail?: string;
  cached?: boolean;
  generated?: number;
  prefilled?: number;
  reused?: number;
  tokens_per_second?: number;
}

type Process = "starting" | "running" | "stopped" | "failed";

export class StatusItem implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("draftline.status", vscode.StatusBarAlignment.Right, 100);
  private process: Process = "stopped";
  private trouble = "";
  private on = true;
  private requests = 0;
  private last: Told | undefined;
  private figures = "";
  /** This server had an engine already. */
  private hadEngine = false;

  constructor() {
    this.item.name = "Draftline";
    this.item.command = "draftline.menu";
    this.show();
    this.item.show();
  }

  server(process: Process, trouble = ""): void {
    this.process = process;
    this.trouble = trouble;
    if (process !== "running") {
      this.last = undefined;
      this.hadEngine = false;
    }
    this.show();
  }

  told(told: Told): void {
    this.last = told;
    this.hadEngine ||= told.state === "ready";
    this.figures = figuresOf(told.last) ?? this.figures;
    this.show();
  }

  switchedOn(on: boolean): void {
    this.on = on;
    this.show();
  }

  /** Says "working" until the request has ended. */
  async during<T>(request: Promise<T>): Promise<T> {
    this.requests += 1;
    this.show();
    try {
      return await request;
    } finally {
      this.requests -= 1;
      this.show();
    }
  }

  dispose(): void {
    this.item.dispose();
  }

  private show(): void {
    const [icon, word, warns] = this.words();
    this.item.text = `${icon} Draftline: ${word}`;
    this.item.backgroundColor = warns ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
    this.item.tooltip = this.tooltip();
  }

  private words(): [icon: string, word: string, warns?: boolean] {
    if (this.process === "failed") {
      return ["$(error)", "error", true];
    }
    if (!this.on) {
      return ["$(circle-slash)", "off"];
    }
    if (this.process === "stopped") {
      return ["$(circle-slash)", "stopped"];
    }
    if (this.last?.state === "unavailable" || (this.last?.state === "loading" && this.hadEngine)) {
      return ["$(warning)", "engine lost", true];
    }
    if (this.last?.state !== "ready") {
      return ["$(loading~spin)", "starting"];
    }
    if (this.requests > 0) {
      return ["$(sync~spin)", "working"];
    }
    return ["$(check)", this.figures ? `ready, ${this.figures}` : "ready"];
  }

  /** Plain text: a message may hold anything. */
  private tooltip(): string {
    const lines = [this.trouble, this.last?.message, this.last?.model ? `model: ${this.last.model}` : ""];
    const last = this.last?.last;
    if (last) {
      lines.push(`last request: ${last.reason}${last.detail ? ` (${last.detail})` : ""}`);
    }
    return ["Draftline", ...lines.filter(Boolean)].join("\n");
  }
}

/** Tokens per second, and the share of the prompt that was reused; undefined where no engine was asked. */
function figuresOf(last: Last | null): string | undefined {
  const { tokens_per_second: speed = 0, prefilled = 0, reused = 0, generated = 0 } = last ?? {};
  if (!generated || prefilled + reused === 0) {
    return undefined;
  }
  return `${Math.round(speed)} tokens/s, ${Math.round((100 * reused) / (prefilled + reused))} % reused`;
}
