#!/usr/bin/env bash
# Builds the image for every container of a cluster: image.sh BINARY TAG, or that of its Prometheus: image.sh prometheus TAG
#
# BINARY is an `ebla` built on this machine; it is stripped of debug information. The layers below it have a separate tag,
# so that the next image adds only the program, and removing an image removes nothing else.
set -euo pipefail
cd "$(dirname "$0")"

RUNTIME=ebla:runtime
binary=$1 tag=$2

main() {
  ./base-image.sh
  context=$(mktemp -d)
  trap 'rm -rf "$context"' EXIT
  if [ "$binary" = prometheus ]; then
    build Dockerfile --target runtime --tag "$RUNTIME"
    build prometheus.Dockerfile --tag "$tag"
    return
  fi
  strip --strip-debug -o "$context/ebla" "$binary"
  # `make dist` writes the list of components beside the program.
  if [ -e "$binary.cdx.json" ]; then cp "$binary.cdx.json" "$context/ebla.cdx.json"; else ./sbom.py "$context/ebla.cdx.json"; fi
  chmod 755 "$context/ebla"
  chmod 644 "$context/ebla.cdx.json"
  build Dockerfile --target runtime --tag "$RUNTIME"
  build Dockerfile --tag "$tag"
  local said
  if ! said=$(docker run --rm --network none "$tag" ebla --version 2>&1); then
    echo "$said" >&2
    echo "$tag: this ebla does not run on Debian 12 (see above): build it on Debian 12, whose C library the image has" >&2
    docker image rm --force "$tag" >/dev/null
    exit 1
  fi
}

build() {
  local file=$1 said
  shift
  if ! said=$(docker build --force-rm --file "$file" "$@" "$context" 2>&1); then
    echo "$said" | tail -n 40 >&2
    exit 1
  fi
}

main
