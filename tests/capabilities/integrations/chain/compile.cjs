// Prints the artefact of RoundAnchor.sol: node compile.cjs path/to/RoundAnchor.sol > RoundAnchor.json (make contract).
const fs = require("node:fs");
const path = require("node:path");
const solc = require("solc");

const [source] = process.argv.slice(2);
const file = path.basename(source);
const name = path.basename(source, ".sol");
// No metadata hash, so that equal code is equal bytes; "paris" runs on chains that lag behind Ethereum.
const settings = {
  evmVersion: "paris",
  metadata: { appendCBOR: false, bytecodeHash: "none" },
  optimizer: { enabled: true, runs: 200 },
  outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"] } },
};
const input = { language: "Solidity", sources: { [file]: { content: fs.readFileSync(source, "utf8") } }, settings };
const output = JSON.parse(solc.compile(JSON.stringify(input)));
for (const e of output.errors ?? []) console.error(e.formattedMessage);
if (output.errors?.length) process.exit(1); // a warning too

const { abi, evm } = output.contracts[file][name];
const artefact = {
  schema: 1,
  contract: name,
  compiler: solc.version(),
  settings,
  abi,
  bytecode: evm.bytecode.object,
  deployed: evm.deployedBytecode.object,
};
process.stdout.write(JSON.stringify(artefact, null, 1) + "\n");
