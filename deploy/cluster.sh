#!/usr/bin/env bash
# A cluster in containers: cluster.sh up BINARY | cluster.sh scale | cluster.sh down
#
# `up` builds the image from BINARY, starts missing containers, replaces containers with an older image, and returns when every
# tablet has a leader. `scale` does the same with the image that exists. Afterwards there are SERVERS tablet servers (3 to 15; if it is
# not set, as many as before, or 5): those above that number are drained, and removed from the cluster with their containers and data.
# `down` removes containers, network and data. Only `up` needs more than docker.
set -euo pipefail
cd "$(dirname "$0")"

export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-ebla}
export EBLA_IMAGE=${EBLA_IMAGE:-ebla:local}
# Server 16 would have the port of a mounttable.
SERVERS_MAX=15
# A first start waits for etcd, for the master's election and for five servers; two cores need half a minute.
READY_SECONDS_MAX=180

main() {
  need_docker
  if [ "${1:-}" = down ]; then
    SERVERS=$(servers_before)
  else
    SERVERS=${SERVERS:-$(servers_before)}
  fi
  if ! [[ $SERVERS =~ ^[0-9]+$ ]] || [ "$SERVERS" -lt 3 ] || [ "$SERVERS" -gt "$SERVERS_MAX" ]; then
    echo "SERVERS=$SERVERS: give a number from 3 (each tablet has three replicas) to $SERVERS_MAX" >&2
    exit 2
  fi
  COMPOSE_FILE_HERE=$(mktemp "${TMPDIR:-/tmp}/ebla-compose-XXXXXX.yaml")
  trap 'rm -f "$COMPOSE_FILE_HERE"' EXIT
  compose_file "$SERVERS" >"$COMPOSE_FILE_HERE"
  case "${1:-}" in
    up) build_image "$2"; start ;;
    scale) start ;;
    down) compose down --volumes --remove-orphans --timeout 10 ;;
    *) echo "usage: $0 up BINARY | scale | down" >&2; exit 2 ;;
  esac
}

# The highest number of a tablet server that has data here; 5 if there is none.
servers_before() {
  local known
  known=$(docker volume ls --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --format '{{.Name}}' \
    | sed -nE 's/.*_tablet-server-([0-9]+)$/\1/p' | sort -n | tail -n 1)
  echo "${known:-5}"
}

# compose.yaml with this number of tablet servers: further ones are copies of the first with another number and port, and what
# belongs to those beyond the number is left out. Blocks end at an empty line.
compose_file() {
  awk -v wanted="$1" '
    function flush_block(  n, copy) {
      if (match(block, /^  tablet-server-[0-9]+:\n/)) {
        n = substr(block, 17, RLENGTH - 18)
        if (n == 1) first = block
        if (n <= wanted) printf "%s", block
        if (n == 5) {
          for (n = 6; n <= wanted; n++) {
            copy = first
            gsub(/tablet-server-1/, "tablet-server-" n, copy)
            gsub(/_PORT_1-8086/, "_PORT_" n "-" (8085 + n), copy)
            printf "%s", copy
          }
        }
      } else printf "%s", block
      block = ""
    }
    # The list of volumes has a line for each server.
    /^volumes:/ { in_volumes = 1 }
    in_volumes && /^  tablet-server-/ { next }
    { block = block $0 "\n" }
    /^$/ { flush_block() }
    END { flush_block(); for (n = 1; n <= wanted; n++) print "  tablet-server-" n ":" }
  ' compose.yaml
}

need_docker() {
  if ! command -v docker >/dev/null; then
    echo "a cluster in containers needs Docker (on Debian: apt-get install docker.io docker-compose)" >&2
    echo "without it, \`ebla up\` runs a whole cluster in one process" >&2
    exit 1
  fi
  if ! docker version >/dev/null 2>&1; then
    docker version 2>&1 | tail -n 1 >&2
    echo "the Docker engine does not answer: start it, or give this user permission to use it" >&2
    exit 1
  fi
  if ! docker compose version >/dev/null 2>&1 && ! command -v docker-compose >/dev/null; then
    echo "Docker is here, but its Compose tool is not (on Debian: apt-get install docker-compose)" >&2
    exit 1
  fi
}

# The plugin where it is installed, or else the older tool.
compose() {
  if docker compose version >/dev/null 2>&1; then
    docker compose --file "$COMPOSE_FILE_HERE" --project-directory . "$@"
  else
    docker-compose --file "$COMPOSE_FILE_HERE" --project-directory . "$@"
  fi
}

build_image() {
  local before
  before=$(docker image inspect --format '{{.Id}}' "$EBLA_IMAGE" 2>/dev/null || true)
  echo "building the image $EBLA_IMAGE"
  ./image.sh "$1" "$EBLA_IMAGE"
  PREVIOUS_IMAGE=$before
}

start() {
  local before=${PREVIOUS_IMAGE:-}
  shrink
  echo "starting containers"
  compose up --detach --remove-orphans
  # The previous image is now untagged. Docker keeps it if a container still uses it.
  if [ -n "$before" ] && [ "$before" != "$(docker image inspect --format '{{.Id}}' "$EBLA_IMAGE")" ]; then
    docker image rm "$before" >/dev/null 2>&1 || true
  fi
  # Uses a separate container, because those of the cluster may still be restarting.
  if ! docker run --rm --network "$COMPOSE_PROJECT_NAME" "$EBLA_IMAGE" \
    ebla wait --addr tablet-server-1:8086 --servers "$SERVERS" --for "$READY_SECONDS_MAX"; then
    compose ps >&2
    echo "not ready; see: docker logs $COMPOSE_PROJECT_NAME-tablet-server-1 (or -master-1, -etcd-1)" >&2
    exit 1
  fi
  # A mounttable creates its table when the cluster is ready.
  if ! docker run --rm --network "$COMPOSE_PROJECT_NAME" "$EBLA_IMAGE" sh -c \
    'for second in $(seq 60); do ebla mt whoami --root mounttable-1:8101 >/dev/null 2>&1 && exit 0; sleep 1; done; exit 1'; then
    echo "no mounttable is ready; see: docker logs $COMPOSE_PROJECT_NAME-mounttable-1" >&2
    exit 1
  fi
  tell
}

# Removes the tablet servers above the wanted number, the last one first. A server is drained before its container stops, so that reads
# and writes go on and no replica is missing.
shrink() {
  local container number reply server
  for container in $(docker ps --all --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --format '{{.Names}}' \
    | grep -E "^$COMPOSE_PROJECT_NAME-tablet-server-[0-9]+$" | sort -t- -k4 -Vr); do
    number=${container##*-}
    [ "$number" -gt "$SERVERS" ] || continue
    echo "draining tablet-server-$number"
    reply=$(docker exec "$COMPOSE_PROJECT_NAME-tablet-server-1" ebla server drain -o json "tablet-server-$number:8086")
    server=$(grep -o '"server": *[0-9]*' <<<"$reply" | grep -o '[0-9]*$')
    docker stop --time 60 "$container" >/dev/null
    docker exec "$COMPOSE_PROJECT_NAME-tablet-server-1" \
      timeout 60 sh -c "until ebla server remove $server; do sleep 1; done"
    docker rm --volumes "$container" >/dev/null
    docker volume rm "${COMPOSE_PROJECT_NAME}_tablet-server-$number" >/dev/null
  done
}

tell() {
  local n first
  first=$(compose port tablet-server-1 8086)
  echo
  for n in $(seq "$SERVERS"); do
    echo "  $COMPOSE_PROJECT_NAME-tablet-server-$n   Bigtable API at $(compose port "tablet-server-$n" 8086)"
  done
  for n in 1 2; do
    echo "  $COMPOSE_PROJECT_NAME-mounttable-$n   names at $(compose port "mounttable-$n" 8101)"
  done
  cat <<END

  Try   export BIGTABLE_EMULATOR_HOST=$first
        cbt -project dev -instance dev createtable web families=anchor
        cbt -project dev -instance dev set web com.cnn.www anchor:cnnsi.com=CNN
        docker exec $COMPOSE_PROJECT_NAME-tablet-server-1 ebla status
        docker kill $COMPOSE_PROJECT_NAME-tablet-server-2 $COMPOSE_PROJECT_NAME-tablet-server-3
        cbt -project dev -instance dev read web
        export MT_ROOT=$(compose port mounttable-1 8101) MT_IDENTITY=me
        ebla mt mount services/web 10.0.0.1:80; ebla mt resolve services/web
        docker start $COMPOSE_PROJECT_NAME-tablet-server-2 $COMPOSE_PROJECT_NAME-tablet-server-3

  Writes are on 2 of 3 disks before they are acknowledged. No TLS, no authentication: the ports are on loopback only.
  make cluster-down removes the cluster.
END
}

main "$@"
