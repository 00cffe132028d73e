#!/usr/bin/env bash
# Ensures that the image debian:bookworm-slim is available locally: it uses an existing image, pulls it, or builds it from the
# Debian mirror of this machine's own package sources. One Dockerfile therefore works with and without an image registry.
#
# The built image is equivalent to the registry's image for our purposes: a minimal Debian without documents and translations,
# in which `apt-get update` works. It contains this machine's package sources and apt proxy settings and stays on this machine.
set -euo pipefail

IMAGE=debian:bookworm-slim
SUITE=bookworm
# An unreachable registry usually fails immediately; a network that drops packets does not respond at all.
PULL_SECONDS_MAX=120
SUDO=$([ "$(id -u)" = 0 ] || echo sudo)

main() {
  if docker image inspect "$IMAGE" >/dev/null 2>&1; then return; fi
  echo "$IMAGE: not available locally, pulling it"
  if timeout "$PULL_SECONDS_MAX" docker pull --quiet "$IMAGE" >/dev/null 2>&1; then return; fi
  echo "$IMAGE: cannot be pulled, building it with debootstrap (a minute or two, once)"
  make_image
}

make_image() {
  local mirror root
  mirror=$(package_sources | awk -v suite="$SUITE" '$2 == suite { print $1; exit }')
  # On another release of Debian, the mirror has this release too.
  [ -n "$mirror" ] || mirror=$(package_sources | awk '$1 ~ /\/debian\/?$/ { print $1; exit }')
  if [ -z "$mirror" ]; then
    echo "$IMAGE: this machine's apt sources contain no Debian mirror: load the image manually (docker load), then retry" >&2
    exit 1
  fi
  install_debootstrap
  root=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name must be expanded now
  trap "$SUDO rm -rf --one-file-system '$root'" EXIT
  bootstrap "$root" "$mirror"
  settle "$root"
  slim "$root"
  $SUDO tar -C "$root" --numeric-owner -c . | docker import --change 'CMD ["bash"]' - "$IMAGE" >/dev/null
  echo "$IMAGE: built"
}

# Prints each HTTP package source of this machine as a line "URI suite", from both of apt's formats.
package_sources() {
  local files=()
  mapfile -t files < <(find /etc/apt/sources.list /etc/apt/sources.list.d -maxdepth 1 -type f \
    \( -name '*.list' -o -name '*.sources' \) 2>/dev/null | sort)
  [ "${#files[@]}" -gt 0 ] || return 0
  awk '
    function flush_stanza(   u, s, uri, suite, nu, ns) {
      if (types ~ /(^| )deb( |$)/ && enabled !~ /^(no|false|0)$/) {
        nu = split(uris, uri, " "); ns = split(suites, suite, " ")
        for (u = 1; u <= nu; u++) for (s = 1; s <= ns; s++) print uri[u], suite[s]
      }
      types = uris = suites = enabled = field = ""
    }
    FNR == 1 { flush_stanza() }
    /^[ \t]*#/ { next }
    FILENAME ~ /\.list$/ {
      if ($1 != "deb") next
      sub(/^deb[ \t]+(\[[^]]*\][ \t]*)?/, "")
      print $1, $2
      next
    }
    /^[ \t]*$/ { flush_stanza(); next }
    /^[A-Za-z-]+:/ { field = tolower(substr($0, 1, index($0, ":") - 1)); sub(/^[^:]*:/, "") }
    field == "types" { types = types " " $0 }
    field == "uris" { uris = uris " " $0 }
    field == "suites" { suites = suites " " $0 }
    field == "enabled" { enabled = tolower($1) }
    END { flush_stanza() }
  ' "${files[@]}" | grep -E '^https?://' || true
}

install_debootstrap() {
  if [ -x /usr/sbin/debootstrap ] && [ -f /usr/share/keyrings/debian-archive-keyring.gpg ]; then return; fi
  echo "installing: debootstrap"
  $SUDO apt-get update -qq
  $SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    debootstrap debian-archive-keyring >/dev/null
}

bootstrap() {
  local root=$1 mirror=$2 proxy="" log
  log=$(mktemp)
  # debootstrap does not read apt's proxy settings.
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  if ! $SUDO env ${proxy:+http_proxy="$proxy"} /usr/sbin/debootstrap --variant=minbase --include=ca-certificates \
    "$SUITE" "$root" "$mirror" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "$IMAGE: debootstrap failed" >&2
    exit 1
  fi
  rm -f "$log"
}

# Configures apt inside the image: the same sources (including security updates), proxy and trusted certificates.
settle() {
  local root=$1
  package_sources | awk -v suite="$SUITE" '$2 ~ "^" suite "(-|$)" { print "deb", $1, $2, "main" }' | sort -u |
    $SUDO tee "$root/etc/apt/sources.list.machine" >/dev/null
  if [ -s "$root/etc/apt/sources.list.machine" ]; then
    $SUDO mv "$root/etc/apt/sources.list.machine" "$root/etc/apt/sources.list"
  else
    $SUDO rm "$root/etc/apt/sources.list.machine"
  fi
  apt-config dump --format '%F "%v";%n' Acquire::http Acquire::https Acquire::Check-Valid-Until Acquire::Check-Date |
    $SUDO tee "$root/etc/apt/apt.conf.d/90machine" >/dev/null
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    $SUDO cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
    $SUDO chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
  # The installation of a package must not start its service: a build has no init.
  printf '#!/bin/sh\nexit 101\n' | $SUDO tee "$root/usr/sbin/policy-rc.d" >/dev/null
  $SUDO chmod 755 "$root/usr/sbin/policy-rc.d"
}

# Removes documents, translations and package lists, and excludes documents and translations from later installations.
slim() {
  local root=$1
  printf 'path-exclude /usr/share/%s/*\n' doc info locale man | $SUDO tee "$root/etc/dpkg/dpkg.cfg.d/slim" >/dev/null
  $SUDO chroot "$root" apt-get clean
  $SUDO sh -c "cd '$root' && rm -rf usr/share/doc/* usr/share/info/* usr/share/locale/* usr/share/man/* \
    var/lib/apt/lists/* var/cache/apt/*.bin var/log/*.log var/log/apt/*"
}

main "$@"
