#!/usr/bin/env bash
# A cluster in containers: cluster.sh up BINARY | cluster.sh down
#
# `up` builds the image from BINARY, starts missing containers, replaces containers with an older image, and returns when every
# tablet has a leader. `down` removes containers, network and data. Only `up` needs more than docker.
set -euo pipefail
cd "$(dirname "$0")"

export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-ebla}
export EBLA_IMAGE=${EBLA_IMAGE:-ebla:local}
TABLET_SERVERS=5
# A first start waits for etcd, for the master's election and for five servers; two cores need half a minute.
READY_SECONDS_MAX=180

main() {
  need_docker
  case "${1:-}" in
    up) up "$2" ;;
    down) compose down --volumes --remove-orphans --timeout 10 ;;
    *) echo "usage: $0 up BINARY | down" >&2; exit 2 ;;
  esac
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
    docker compose --file compose.yaml "$@"
  else
    docker-compose --file compose.yaml "$@"
  fi
}

up() {
  local before
  before=$(docker image inspect --format '{{.Id}}' "$EBLA_IMAGE" 2>/dev/null || true)
  echo "building the image $EBLA_IMAGE"
  ./image.sh "$1" "$EBLA_IMAGE"
  echo "starting containers"
  compose up --detach --remove-orphans
  # The previous image is now untagged. Docker keeps it if a container still uses it.
  if [ -n "$before" ] && [ "$before" != "$(docker image inspect --format '{{.Id}}' "$EBLA_IMAGE")" ]; then
    docker image rm "$before" >/dev/null 2>&1 || true
  fi
  # Uses a separate container, because those of the cluster may still be restarting.
  if ! docker run --rm --network "$COMPOSE_PROJECT_NAME" "$EBLA_IMAGE" \
    ebla wait --addr tablet-server-1:8086 --servers "$TABLET_SERVERS" --for "$READY_SECONDS_MAX"; then
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

tell() {
  local n first
  first=$(compose port tablet-server-1 8086)
  echo
  for n in $(seq "$TABLET_SERVERS"); do
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
