#!/bin/sh
# Run a command with its temporary files in memory, where there is room and programs may be run from there; else as it is.
# Tests sync tens of thousands of small files, and on a disk they wait for each.
shm=/dev/shm
free() { df -Pk "$shm" 2>/dev/null | awk 'NR == 2 { print $4 }'; }
available() { awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null; }
enough() { [ -w "$shm" ] && [ "$(free)" -ge 4000000 ] && [ "$(available)" -ge 6000000 ]; } 2>/dev/null
if enough && folder=$(mktemp -d "$shm/grandrounds.XXXXXX"); then
  trap 'rm -rf "$folder"' EXIT
  trap 'exit 130' INT TERM
  printf '#!/bin/sh\n' >"$folder/runs" && chmod +x "$folder/runs"
  if "$folder/runs" 2>/dev/null; then
    export TMPDIR="$folder"
  fi
fi
"$@"
