// A browser for tests in Python. Each line on standard input is a JSON string, the body of an async function with `page` and `context`; the
// answer is one line: {"value"} or {"error"}. Arguments: playwright-core's folder, Chromium, a folder for the profile.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [core, executablePath, profile] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(core);
const context = await chromium.launchPersistentContext(profile, {
  executablePath,
  headless: true,
  viewport: { width: 1200, height: 760 },
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
const page = context.pages()[0] ?? (await context.newPage());
page.setDefaultTimeout(60_000);
const AsyncFunction = (async () => {}).constructor;

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { value: (await new AsyncFunction("page", "context", JSON.parse(line))(page, context)) ?? null };
  } catch (error) {
    answer = { error: String(error?.message ?? error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await context.close();
