#!/usr/bin/env bash
# Makes the Debian package: package.sh PROGRAM FOLDER writes FOLDER/ebla_VERSION_ARCHITECTURE.deb and prints its path.
#
# It holds the program, a unit of systemd for each role, and a configuration file for each, with every option as a comment. The
# units are not enabled: an operator fills in the file first. The folder of the data, /var/lib/ebla, stays when the package is removed.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

ROLES=(up master tablet-server mounttable)
program=$1 folder=$2

main() {
  local version architecture
  version=$("$program" version -o json | sed -n 's/.*"version": "\([^"]*\)".*/\1/p')
  architecture=$(dpkg --print-architecture)
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  chmod 755 "$tree"
  files
  control "$version" "$architecture"
  mkdir -p "$folder"
  local package=$folder/ebla_${version}_$architecture.deb
  dpkg-deb --root-owner-group -Zzstd --build "$tree" "$package" >/dev/null
  echo "$package"
}

files() {
  install -D -m 755 "$program" "$tree/usr/bin/ebla"
  strip --strip-debug "$tree/usr/bin/ebla"
  install -d "$tree/usr/lib/systemd/system" "$tree/usr/share/doc/ebla"
  install -d -m 755 "$tree/etc/ebla"
  install -m 644 "$HERE"/systemd/*.service "$tree/usr/lib/systemd/system/"
  install -m 644 "$HERE/../README.md" "$tree/usr/share/doc/ebla/README"
  cat "$HERE/../LICENSE-APACHE" "$HERE/../LICENSE-MIT" > "$tree/usr/share/doc/ebla/copyright"
  gzip -9n < "$HERE/../CHANGELOG.md" > "$tree/usr/share/doc/ebla/changelog.gz"
  "$program" man "$tree/usr/share/man/man1" 2>/dev/null
  gzip -9n "$tree"/usr/share/man/man1/*.1
  install -d "$tree/usr/share/bash-completion/completions" "$tree/usr/share/zsh/vendor-completions" "$tree/usr/share/fish/vendor_completions.d"
  "$program" completion bash > "$tree/usr/share/bash-completion/completions/ebla"
  "$program" completion zsh > "$tree/usr/share/zsh/vendor-completions/_ebla"
  "$program" completion fish > "$tree/usr/share/fish/vendor_completions.d/ebla.fish"
  local role
  for role in "${ROLES[@]}"; do
    # Every role of a machine has its own folder.
    "$program" config template "$role" | sed "s|^#data = .*|data = \"/var/lib/ebla/$role\"|" > "$tree/etc/ebla/$role.toml"
  done
}

control() {
  install -d "$tree/DEBIAN"
  cat > "$tree/DEBIAN/control" <<END
Package: ebla
Version: $1
Architecture: $2
Maintainer: The Ebla authors <ebla@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Depends: libc6 (>= 2.36), libgcc-s1, libstdc++6, passwd
Suggests: etcd-server
Section: database
Priority: optional
Description: Bigtable that anyone can run
 A master, tablet servers, a client library and a name service as the Bigtable
 paper describes them. Clients of Cloud Bigtable work with it unchanged.
END
  (cd "$tree" && find etc -type f | sed 's|^|/|' | sort) > "$tree/DEBIAN/conffiles"
  cat > "$tree/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
  getent passwd ebla >/dev/null || \
    useradd --system --user-group --home-dir /var/lib/ebla --no-create-home --shell /usr/sbin/nologin ebla
  install -d -m 750 -o ebla -g ebla /var/lib/ebla
  if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # After an upgrade, services that run are restarted with the new program. Upgrade one server of a cluster after the other.
    for unit in ebla ebla-master ebla-tablet-server ebla-mounttable; do
      if [ -n "$2" ] && systemctl --quiet is-active "$unit"; then
        systemctl restart "$unit" || echo "ebla: $unit did not start: journalctl -u $unit" >&2
      fi
    done
  fi
fi
END
  cat > "$tree/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  for unit in ebla-mounttable ebla-tablet-server ebla-master ebla; do systemctl disable --now "$unit" >/dev/null 2>&1 || true; done
fi
END
  cat > "$tree/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ] && [ -d /var/lib/ebla ]; then
  echo "the data in /var/lib/ebla was not removed"
fi
END
  chmod 755 "$tree/DEBIAN/postinst" "$tree/DEBIAN/prerm" "$tree/DEBIAN/postrm"
}

main
