// Uses a proposed API without being allowed to, and says in the status bar what came of it.
const vscode = require("vscode");

exports.activate = (context) => {
  const item = vscode.window.createStatusBarItem("canary", vscode.StatusBarAlignment.Right, 1);
  context.subscriptions.push(item);
  try {
    vscode.workspace.registerTimelineProvider("file", {});
    item.text = "canary: allowed";
  } catch (error) {
    item.text = "canary: refused";
    item.tooltip = String(error);
  }
  item.show();
};
