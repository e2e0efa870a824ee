/** The settings that go to the server: those that package.json has from docs/settings.schema.json, as one nested object. */
import * as vscode from "vscode";
import manifest from "../package.json";

const PREFIX = "draftline.";

/** The names of the server's settings, without the prefix: "max_tokens", "sources.path". */
const [, published] = manifest.contributes.configuration;
const names = Object.keys(published?.properties ?? {}).map((key) => key.slice(PREFIX.length));

type Values = { [name: string]: unknown };

export function serverSettings(): Values {
  const configuration = vscode.workspace.getConfiguration("draftline");
  const values: Values = {};
  for (const name of names) {
    const path = name.split(".");
    let into = values;
    for (const group of path.slice(0, -1)) {
      into = (into[group] ??= {}) as Values;
    }
    into[path[path.length - 1] as string] = configuration.get(name);
  }
  return values;
}

/** The command that starts the server, or a line that says what is wrong with the setting. */
export function serverCommand(): [string, ...string[]] | string {
  const value = vscode.workspace.getConfiguration("draftline").get<unknown>("command");
  if (!Array.isArray(value) || !value.every((part) => typeof part === "string") || !value[0]?.trim()) {
    return 'The setting draftline.command must be a list of strings, such as ["draftline", "lsp"].';
  }
  return value as [string, ...string[]];
}
