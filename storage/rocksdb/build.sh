#!/usr/bin/env bash
# Compiles the RocksDB that the crate librocksdb-sys ships, once for all clones, profiles and features, and prints the
# folder of the library. `storage/rocksdb/configure.sh` tells cargo where it is.
#
# The crate compiles 343 files one by one, 25 minutes of processor time, and again for each target folder. Here they are
# eight unity units (files that include files), 6 minutes. The sources, definitions and headers are the crate's own; only
# the units and the optimiser differ (decision 0012).
#
# The result is kept by a hash of all that goes into it: this script, the crates' versions, the compiler's version.
set -euo pipefail
cd "$(dirname "$0")/../.."

UNITS=8
CACHE=${EBLA_CACHE:-$HOME/.cache/ebla}/rocksdb

[ "$(uname -s)" = Linux ] || { echo "only Linux is prepared for" >&2; exit 1; }
CXX=${CXX:-$(command -v clang++ || command -v g++)}

# The folder of a crate's sources, as cargo has them.
metadata=$(cargo metadata --locked --format-version 1)
crate() { dirname "$(grep -o "\"manifest_path\":\"[^\"]*/$1-[0-9][^\"]*\"" <<<"$metadata" | head -n 1 | cut -d '"' -f 4)"; }
# The folder of a header inside a crate.
include() { dirname "$(find "$(crate "$1")" -name "$2" | head -n 1)"; }

sources=$(crate librocksdb-sys)
lz4=$(include lz4-sys lz4.h)
zstd=$(include zstd-sys zstd.h)
key=$({ cat "$0"; basename -a "$sources" "$(crate lz4-sys)" "$(crate zstd-sys)"; "$CXX" --version; uname -m; } | sha256sum | cut -c 1-16)
library=$CACHE/$key
if [ -f "$library/librocksdb.a" ]; then
  echo "$library"
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "compiling RocksDB, once: about 3 minutes on two cores" >&2

# Files in the crate's order, cut into units of about the same number of bytes.
files=$(grep -v '^util/build_version\.cc$' "$sources/rocksdb_lib_sources.txt")
total=$(cd "$sources/rocksdb" && cat $files | wc -c)
unit=0 written=0
for file in $files; do
  echo "#include \"rocksdb/$file\"" >>"$work/unit$unit.cc"
  written=$((written + $(wc -c <"$sources/rocksdb/$file")))
  [ "$written" -lt $((total * (unit + 1) / UNITS)) ] || unit=$((unit + 1))
done
cp "$sources/build_version.cc" "$work/"

definitions=(
  NDEBUG HAVE_ALIGNED_NEW HAVE_UINT128_EXTENSION LZ4=1 ZSTD=1
  OS_LINUX ROCKSDB_PLATFORM_POSIX ROCKSDB_LIB_IO_POSIX ROCKSDB_SCHED_GETCPU_PRESENT ROCKSDB_AUXV_GETAUXVAL_PRESENT
  ROCKSDB_FALLOCATE_PRESENT ROCKSDB_RANGESYNC_PRESENT
)
folders=("$sources/rocksdb/include" "$sources/rocksdb" "$sources" "$lz4" "$zstd")
flags=(-std=c++20 -O2 -g0 -w -fPIC -ffunction-sections -fdata-sections -include cstdint "${definitions[@]/#/-D}" "${folders[@]/#/-I}")
export CXX
printf '%s\n' "$work"/*.cc | xargs -P "$(nproc)" -I {} sh -c '"$CXX" "$@" -c {} -o {}.o' compile "${flags[@]}"
ar crs "$work/librocksdb.a" "$work"/*.o

# Whole or not at all, also when two builds run at once.
mkdir -p "$library"
mv "$work/librocksdb.a" "$library/librocksdb.a.$$"
mv "$library/librocksdb.a.$$" "$library/librocksdb.a"
echo "$library"
