#!/usr/bin/env bash
# Writes .cargo/config.toml, which git ignores: the target folder that all clones share, and the folder of the RocksDB that
# `storage/rocksdb/build.sh` has compiled. Afterwards `cargo build -p CRATE` and `cargo test -p CRATE` find both.
# Without the file, or if build.sh fails, librocksdb-sys compiles RocksDB itself: slower, but otherwise the same.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=${EBLA_CACHE:-$HOME/.cache/ebla}
configuration="# Written by storage/rocksdb/configure.sh.
[build]
target-dir = \"$cache/target\""
if library=$(storage/rocksdb/build.sh); then
  configuration+="

[env]
ROCKSDB_LIB_DIR = \"$library\"
ROCKSDB_STATIC = \"1\""
else
  echo "storage/rocksdb/build.sh failed (above): librocksdb-sys compiles RocksDB itself, about 15 minutes on two cores" >&2
fi

mkdir -p .cargo
# Write only a changed file: a newer one would make cargo check everything again.
[ "$(cat .cargo/config.toml 2>/dev/null)" = "$configuration" ] || printf '%s\n' "$configuration" >.cargo/config.toml
