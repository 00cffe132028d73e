#!/usr/bin/env bash
# Unpacks the pages of `make run` into FOLDER, unless it exists: the documentation of Clang as Debian's packages of five releases have it,
# each release as one crawl of the host. Nothing is installed.
#
# usage: pages.sh FOLDER
set -euo pipefail
folder=$1
[ -d "$folder" ] && exit 0
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
for release in 13 14 15 16 19; do
  apt-get download -qq -o APT::Sandbox::User="$(id -un)" "clang-$release-doc"
  dpkg-deb -x clang-"$release"-doc_*.deb unpacked
  mkdir -p "pages/$release/clang.llvm.org"
  mv "unpacked/usr/share/doc/clang-$release/html" "pages/$release/clang.llvm.org/docs"
  rm -rf unpacked clang-"$release"-doc_*.deb
done
# Scripts, pictures, and links to files of packages that are not installed.
find pages ! -type d ! -name '*.html' -delete
mv pages "$folder"
