// Writes dist/THIRD-PARTY.txt: the licence of each package that esbuild put into the bundle (dist/meta.json).
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const { inputs } = JSON.parse(readFileSync("dist/meta.json", "utf8"));
const folders = new Set(
  Object.keys(inputs).flatMap((file) => file.match(/^.*node_modules\/(@[^/]+\/)?[^/]+/)?.[0] ?? []),
);
const notices = [...folders].sort().map((folder) => {
  const licence = readdirSync(folder).find((name) => /^licen[sc]e/i.test(name));
  if (!licence) {
    throw new Error(`${folder} has no licence file`);
  }
  const { name, version } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  return `${name} ${version}\n\n${readFileSync(`${folder}/${licence}`, "utf8").trim()}\n`;
});
writeFileSync("dist/THIRD-PARTY.txt", notices.join(`\n${"-".repeat(80)}\n\n`));
