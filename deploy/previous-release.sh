#!/usr/bin/env bash
# Builds the program of the previous release from the history of this clone, for the tests of upgrades: once for each machine, cached in
# $EBLA_CACHE/previous/COMMIT/ebla.
#
#   previous-release.sh build   builds it unless it is cached; prints a reason and succeeds when the clone does not contain its commit
#   previous-release.sh path    prints the path of the program; fails with the reason when it was not built
#
# The sources are compiled in the target folder of the clone ($CARGO_TARGET_DIR), so with equal profiles and features the compiled
# dependencies are shared. Cargo names the crates of a workspace by their versions and their paths within it: the commit is appended to the
# version, or the crates of the two releases would replace each other. Only the program has the same name; it is copied, and removed.
set -euo pipefail

# The previous release. A release sets it to the commit of its predecessor.
COMMIT=2e0c55ff8d51fabdf87fe8b7c38f5ef2787df793

ROOT=$(cd "$(dirname "$0")/.." && pwd)
CACHE=${EBLA_CACHE:-$HOME/.cache/ebla}
FOLDER=$CACHE/previous/$COMMIT
PROGRAM=$FOLDER/ebla

main() {
  case "${1:-}" in
    build) build ;;
    path) path ;;
    *) echo "usage: $0 build|path" >&2; exit 2 ;;
  esac
}

path() {
  if [ -x "$PROGRAM" ]; then echo "$PROGRAM"; return; fi
  echo "the program of the previous release ($COMMIT) is not built: make previous" >&2
  exit 1
}

build() {
  if [ -x "$PROGRAM" ]; then return; fi
  if ! git -C "$ROOT" cat-file -e "$COMMIT^{commit}" 2>/dev/null; then
    echo "this clone does not contain the previous release ($COMMIT): its tests are skipped (git fetch --unshallow)"
    return
  fi
  mkdir -p "$FOLDER"
  local sources=$FOLDER/sources
  rm -rf "$sources"
  mkdir "$sources"
  git -C "$ROOT" archive "$COMMIT" | tar -x -C "$sources"
  # The path of the compiled RocksDB and of the target folder.
  mkdir -p "$sources/.cargo"
  cp "$ROOT/.cargo/config.toml" "$sources/.cargo/config.toml"
  sed -i "0,/^version = \"\([^\"]*\)\"/s//version = \"\1+${COMMIT:0:8}\"/" "$sources/Cargo.toml"
  local target=${CARGO_TARGET_DIR:-$CACHE/target}
  # Not --locked: the lock file has the versions of the workspace. Those of the dependencies stay. Its dependencies that this release does not
  # have are downloaded first; without a network the build says what is missing.
  (cd "$sources" && cargo fetch --quiet) || true
  (cd "$sources" && CARGO_TARGET_DIR=$target cargo build --release --offline -p ebla-cli --bin ebla)
  objcopy --strip-debug "$target/release/ebla" "$PROGRAM.new"
  mv "$PROGRAM.new" "$PROGRAM"
  rm -rf "$sources"
  # The next build of this clone links its own program again.
  rm -f "$target/release/ebla"
}

main "$@"
