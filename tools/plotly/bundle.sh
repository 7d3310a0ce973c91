#!/bin/sh
# Builds src/grandrounds/report/static/plotly.min.js.gz, the script that draws figures in reports and in the console.
# It has only the traces that entry.js lists: 0.45 MB packed, where the whole of plotly.js has 1.5 MB.
#
#     tools/plotly/bundle.sh
#
# Needs node 20 or newer and npm. A new kind of trace: add it to entry.js, build, and run tests/report/test_bundle.py.
set -eu
version=4.1.1
here=$(cd "$(dirname "$0")" && pwd)
static=$here/../../src/grandrounds/report/static
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/entry.js" "$here/licences.js" "$work"
cd "$work"
npm install --no-audit --no-fund --ignore-scripts "plotly.js@$version" buffer@6.0.3 esbuild@0.28.2 > npm.log
banner="/*! plotly.js v$version (MIT), a custom bundle of scatter, bar, heatmap, image, scatterpolar and waterfall; licences: plotly.LICENSE.txt */"
node_modules/.bin/esbuild entry.js --bundle --minify --format=iife --global-name=Plotly --target=es2018 \
  --define:global=window --define:define.amd=false --legal-comments=none --metafile=meta.json "--banner:js=$banner" \
  --outfile=plotly.min.js
gzip -9 -n -c plotly.min.js > "$static/plotly.min.js.gz"
node licences.js > "$static/plotly.LICENSE.txt"
