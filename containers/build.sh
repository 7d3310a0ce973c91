#!/bin/sh
# containers/build.sh [OPTIONS]: build the images grandrounds-server, grandrounds-site and grandrounds-console.
#
#   --wheels DIR     install from the folder that `rounds provision wheels` wrote (extras flower and console) and download no
#                    Python package; without it the package is installed from this repository
#   --extras A,B     extras of the package, without --wheels (default: flower,console; networks need imaging)
#   --base IMAGE     base image (default: the one in the Dockerfile)
#   --debian SUITE   make the base image from Debian packages with mmdebstrap, where no registry can be reached; SUITE is
#                    bookworm (Python 3.11) or a later release
#   --tool PROGRAM   docker, podman or buildah (default: the first that is installed)
#   --tag TAG        tag of the images (default: the version in pyproject.toml)
#   --registry NAME  first part of the images' names (default: localhost)
#   --only TARGET    build one of server, site, console; with --debian also base, for the base image alone
#
# BUILD_OPTIONS in the environment has further words for the build command, such as --network=host.
set -eu
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
wheels= extras= base= suite= tool= registry=localhost targets="server console site"
tag=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml" | head -n 1)

fail() { echo "containers/build.sh: $1" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set -eu/{/^set/d;s/^# \{0,1\}//;p;}' "$0"; exit 0 ;;
    --wheels | --extras | --base | --debian | --tool | --tag | --registry | --only)
      [ $# -ge 2 ] || fail "$1 needs a value: see --help" ;;
    *) fail "unknown option $1: see --help" ;;
  esac
  case $1 in
    --wheels) wheels=$2 ;;
    --extras) extras=$2 ;;
    --base) base=$2 ;;
    --debian) suite=$2 ;;
    --tool) tool=$2 ;;
    --tag) tag=$2 ;;
    --registry) registry=$2 ;;
    --only) targets=$2 ;;
  esac
  shift 2
done
if [ -z "$tool" ]; then
  for program in docker podman buildah; do
    if command -v $program >/dev/null; then tool=$program; break; fi
  done
  [ -n "$tool" ] || fail "none of docker, podman and buildah is installed: install one of them"
fi
[ -z "$wheels" ] || [ -f "$wheels/requirements.txt" ] || fail "$wheels has no requirements.txt: write it with \`rounds provision wheels\`"
for target in $targets; do
  case $target in
    server | site | console) ;;
    base) [ -n "$suite" ] || fail "--only base needs --debian SUITE" ;;
    *) fail "unknown target $target: server, site or console" ;;
  esac
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

# A base of Debian packages: Python with venv, without manuals and translations. It has the apt sources of this machine.
if [ -n "$suite" ]; then
  command -v mmdebstrap >/dev/null || fail "mmdebstrap is not installed: apt-get install mmdebstrap, or give --base"
  base=localhost/grandrounds-base:$suite
  echo "making $base"
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    "$suite" "$scratch/base.tar"
  case $tool in
    docker | podman) $tool import "$scratch/base.tar" "$base" >/dev/null ;;
    buildah)
      empty=$(buildah from scratch)
      buildah add --quiet "$empty" "$scratch/base.tar" / >/dev/null
      buildah commit --quiet --rm "$empty" "$base" >/dev/null ;;
  esac
  rm "$scratch/base.tar"
  echo "built $base"
fi
[ "$targets" != base ] || exit 0

# The context: the repository without what .dockerignore leaves out, or the wheelhouse.
context=$root
if [ -n "$wheels" ]; then
  context=$scratch/context
  mkdir -p "$context/containers"
  cp "$root/containers/health.py" "$context/containers/"
  cp -r "$wheels" "$context/wheels"
fi

# Docker's image format has health checks, OCI's has none.
case $tool in
  docker) set -- docker build ;;
  podman) set -- podman build --format docker --layers ;;
  buildah) set -- buildah build --format docker --layers ;;
  *) fail "unknown tool $tool: docker, podman or buildah" ;;
esac
set -- "$@" --file "$root/containers/Dockerfile" ${base:+--build-arg "BASE=$base"} ${extras:+--build-arg "EXTRAS=$extras"}
# shellcheck disable=SC2086  # BUILD_OPTIONS is a list of words
for target in $targets; do
  "$@" ${BUILD_OPTIONS:-} --target "$target" --tag "$registry/grandrounds-$target:$tag" "$context"
  echo "built $registry/grandrounds-$target:$tag"
done
