#!/bin/sh
# Puts the Solidity compiler and a node to test against (package.json) into FOLDER: sh install.sh FOLDER
# Nothing is installed globally but, on Debian as root, Node.js itself, and an emulator where the node has no build for
# this machine. Where something cannot be had it says so and ends well: the tests that need it are skipped.
set -u
here=$(dirname "$0")
folder=$1
anvil=$(sed -n 's/.*"@foundry-rs\/anvil": "\(.*\)".*/\1/p' "$here/package.json")

# Nothing asks, and nothing waits for long: what is fetched may be given up, what is being unpacked may not.
apt() { limit=$1; shift; DEBIAN_FRONTEND=noninteractive timeout "$limit" apt-get -qq -y --no-install-recommends \
  -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o Acquire::Retries=1 -o DPkg::Lock::Timeout=60 "$@" </dev/null >/dev/null; }
debian() { test "$(id -u)" = 0 && command -v apt-get >/dev/null && apt 90 update && apt 180 install --download-only "$@" && apt 0 install "$@"; }
skipped() { echo "$1: tests on a chain are skipped"; exit 0; }

command -v npm >/dev/null || debian nodejs npm || skipped "no Node.js to be had"
mkdir -p "$folder" && cp "$here/package.json" "$folder/" || exit 1
# No install scripts: the node's own looks for its build on the network for minutes where the registry has none.
get() { npm install --prefix "$folder" --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error \
  --fetch-timeout=30000 --fetch-retries=1 --fetch-retry-mintimeout=1000 "$@" </dev/null >/dev/null; }
get || skipped "no Solidity compiler to be had"
set -- "$folder"/node_modules/@foundry-rs/anvil-*/bin/anvil
test -x "$1" && exit 0
get --no-save --force "@foundry-rs/anvil-linux-amd64@$anvil" || skipped "no EVM node to be had"
{ command -v qemu-x86_64 >/dev/null && test -d /usr/x86_64-linux-gnu; } || debian qemu-user libc6-amd64-cross libgcc-s1-amd64-cross \
  || skipped "no EVM node for this kind of machine, and no emulator"
