// Prints the licence of each package that is in the bundle, from esbuild's meta.json.
const {readFileSync, readdirSync} = require("fs");
const inputs = Object.values(JSON.parse(readFileSync("meta.json")).outputs).find(one => one.entryPoint).inputs;
const names = new Set(Object.keys(inputs).map(path => path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]).filter(Boolean));
for (const name of [...names].sort()) {
  const folder = `node_modules/${name}`;
  const {version, license} = JSON.parse(readFileSync(`${folder}/package.json`));
  const file = readdirSync(folder).find(one => /^licen[cs]e/i.test(one));
  const text = file ? readFileSync(`${folder}/${file}`, "utf8").trim() : "(the package has no licence file)";
  console.log(`${"=".repeat(80)}\n${name} ${version} (${license})\n${"=".repeat(80)}\n${text}\n`);
}
