#!/usr/bin/env bash
# A cluster in containers: cluster.sh up BINARY | cluster.sh scale | cluster.sh ebla ARGUMENTS… | cluster.sh down
#
# `up` builds the image from BINARY, starts missing containers, replaces containers with an older image, and returns when every
# tablet has a leader. `scale` does the same with the image that exists. Afterwards there are SERVERS tablet servers (3 to 15; if it is
# not set, as many as before, or 5): those above that number are drained, and removed from the cluster with their containers and data.
# `ebla` runs a command of the operator in a container, for example `cluster.sh ebla status`.
# `down` removes containers, network, data, keys and tokens. Only `up` needs more than docker.
#
# Every connection has TLS, and every call of the public API needs a token or a client certificate. The keys of the two CAs, of the cluster and
# of etcd, and the key that signs tokens are in $EBLA_CLUSTER_FILES/$COMPOSE_PROJECT_NAME; containers have copies of their own files only. With
# SECURITY=off a new cluster has no TLS and no access control. A cluster keeps the form that it was made with.
#
# METRICS=on adds a Prometheus with the alert rules, METRICS=off removes it again and keeps its data; without METRICS it stays as it is.
set -euo pipefail
cd "$(dirname "$0")"

export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-ebla}
export EBLA_IMAGE=${EBLA_IMAGE:-ebla:local}
export EBLA_PROMETHEUS_IMAGE=${EBLA_PROMETHEUS_IMAGE:-ebla-prometheus:local}
# Server 16 would have the port of a mounttable.
SERVERS_MAX=15
# A first start waits for etcd, for the master's election and for five servers; two cores need half a minute.
READY_SECONDS_MAX=180
# For a Prometheus that has just started.
METRICS_READY_SECONDS_MAX=60
# The files of this cluster: ca, etcd and tokens, with the secret keys, and containers/NAME, what each container has.
FILES=${EBLA_CLUSTER_FILES:-${EBLA_CACHE:-$HOME/.cache/ebla}/clusters}/$COMPOSE_PROJECT_NAME
# Containers run as this user and group (Dockerfile).
CONTAINER_USER=10001
# A certificate is valid for a year, and replaced by `up` and `scale` when it is older than this. Running processes take up the new one.
CERTIFICATE_DAYS_MAX=90
TOKEN_LIFE=30d
# As compose.yaml has them.
ISSUER=(--issuer https://ebla.example.org --audience ebla)

main() {
  need_docker
  if [ "${1:-}" = down ]; then
    SERVERS=$(servers_before)
    unset SECURITY
    METRICS=on
  else
    SERVERS=${SERVERS:-$(servers_before)}
  fi
  if ! [[ $SERVERS =~ ^[0-9]+$ ]] || [ "$SERVERS" -lt 3 ] || [ "$SERVERS" -gt "$SERVERS_MAX" ]; then
    echo "SERVERS=$SERVERS: give a number from 3 (each tablet has three replicas) to $SERVERS_MAX" >&2
    exit 2
  fi
  choose_security
  choose_metrics
  COMPOSE_FILE_HERE=$(mktemp "${TMPDIR:-/tmp}/ebla-compose-XXXXXX.yaml")
  trap 'rm -f "$COMPOSE_FILE_HERE"' EXIT
  compose_file "$SERVERS" | of_security >"$COMPOSE_FILE_HERE"
  case "${1:-}" in
    up) build_image "$2"; start ;;
    scale) start ;;
    ebla) operator "$@" ;;
    down) remove ;;
    *) echo "usage: $0 up BINARY | scale | ebla ARGUMENTS… | down" >&2; exit 2 ;;
  esac
}

volumes() {
  docker volume ls --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --format '{{.Name}}'
}

# The highest number of a tablet server that has data here; 5 if there is none.
servers_before() {
  local known
  known=$(volumes | sed -nE 's/.*_tablet-server-([0-9]+)$/\1/p' | sort -n | tail -n 1)
  echo "${known:-5}"
}

# Sets SECURITY to on or off. etcd records its own addresses, with or without TLS, so a cluster cannot change its form.
choose_security() {
  local before=
  case "$(volumes)" in
    *_etcd-1-files*) before=on ;;
    *_etcd-1*) before=off ;;
  esac
  SECURITY=${SECURITY:-${before:-on}}
  case "$SECURITY" in on | off) ;; *) echo "SECURITY=$SECURITY: give on or off" >&2; exit 2 ;; esac
  if [ -n "$before" ] && [ "$before" != "$SECURITY" ]; then
    echo "this cluster was made with SECURITY=$before: remove it with its data first (make cluster-down), or leave out SECURITY" >&2
    exit 2
  fi
}

# Sets METRICS to on or off, and the profile of Compose with it.
choose_metrics() {
  local before=off
  if docker container inspect "$COMPOSE_PROJECT_NAME-prometheus" >/dev/null 2>&1; then before=on; fi
  METRICS=${METRICS:-$before}
  case "$METRICS" in
    on) export COMPOSE_PROFILES=metrics ;;
    off) unset COMPOSE_PROFILES ;;
    *) echo "METRICS=$METRICS: give on or off" >&2; exit 2 ;;
  esac
}

# The form of the compose file for SECURITY.
of_security() {
  if [ "$SECURITY" = on ]; then cat; else sed -E '/ # secure$/d; s/# plain: //; s#https://#http://#g'; fi
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
    END {
      flush_block()
      for (n = 1; n <= wanted; n++) print "  tablet-server-" n ":\n  tablet-server-" n "-files: # secure"
    }
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

# Makes the keys, certificates and tokens that are missing or old.
secure() {
  [ "$SECURITY" = on ] || return 0
  echo "certificates and keys: $FILES"
  (umask 077; mkdir -p "$FILES")
  docker run --rm --interactive --network none --read-only --cap-drop ALL --security-opt no-new-privileges \
    --user "$(id -u):$(id -g)" --volume "$FILES:/files" --workdir /files "$EBLA_IMAGE" \
    sh -eu -s "$SERVERS" "$METRICS" "$CERTIFICATE_DAYS_MAX" "$TOKEN_LIFE" "${ISSUER[@]}" <<'END'
    umask 077
    servers=$1 metrics=$2 days=$3 life=$4
    shift 4
    [ -e ca/ca.key ] || ebla cert init --dir ca >/dev/null
    [ -e etcd/ca.key ] || ebla cert init --dir etcd >/dev/null
    [ -e tokens/token.key ] || ebla token init --dir tokens >/dev/null
    is_recent() { [ -n "$(find "$1" -mtime "-$days" 2>/dev/null)" ]; }
    server() { is_recent "$1/$2.crt" || ebla cert server "$2" --dir "$1" --role "$3" --host "$2,localhost,127.0.0.1" --replace >/dev/null; }
    # of NAME: the folder of what the container has.
    of() { to=containers/$1; mkdir -p "$to"; }
    cluster_files() { cp ca/ca.crt "$to/ca.crt"; cp "ca/$1.crt" "$to/server.crt"; cp "ca/$1.key" "$to/server.key"; }
    etcd_files() { cp etcd/ca.crt "$to/etcd-ca.crt"; cp "etcd/$1.crt" "$to/etcd.crt"; cp "etcd/$1.key" "$to/etcd.key"; }
    node() {
      server ca "$1" "$2"
      is_recent "etcd/$1.crt" || ebla cert client "$1" --dir etcd --replace >/dev/null
      of "$1"; cluster_files "$1"; etcd_files "$1"
    }
    for n in 1 2 3; do server etcd "etcd-$n" other; of "etcd-$n"; etcd_files "etcd-$n"; done
    for n in 1 2; do
      node "master-$n" master
      server ca "mounttable-$n" mounttable; of "mounttable-$n"; cluster_files "mounttable-$n"; cp tokens/token-keys.json "$to/"
    done
    for n in $(seq "$servers"); do node "tablet-server-$n" tablet-server; cp tokens/token-keys.json "$to/"; done
    if [ "$metrics" = on ]; then
      # A client without a role: it may read figures, and nothing else.
      is_recent ca/prometheus.crt || ebla cert client prometheus --dir ca --replace >/dev/null
      of prometheus; cp ca/ca.crt ca/prometheus.crt ca/prometheus.key "$to/"
    fi
    of operator; cp ca/ca.crt "$to/"
    ebla token issue operator "$@" --dir tokens --for "$life" --out "$to/operator.token" --replace
END
}

# Makes the image of Prometheus and its configuration, or removes its container.
prepare_metrics() {
  if [ "$METRICS" = off ]; then
    docker rm --force "$COMPOSE_PROJECT_NAME-prometheus" >/dev/null 2>&1 || true
    return 0
  fi
  docker image inspect "$EBLA_PROMETHEUS_IMAGE" >/dev/null 2>&1 || echo "building the image $EBLA_PROMETHEUS_IMAGE"
  ./image.sh prometheus "$EBLA_PROMETHEUS_IMAGE"
  (umask 077; mkdir -p "$FILES/containers/prometheus"; ./prometheus-files.sh "$FILES/containers/prometheus" "$SERVERS" "$SECURITY")
}

# When the running Prometheus started; nothing if none runs.
prometheus_since() {
  docker container inspect --format '{{if .State.Running}}{{.State.StartedAt}}{{end}}' "$COMPOSE_PROJECT_NAME-prometheus" 2>/dev/null || true
}

# Makes Prometheus read its configuration and the alert rules again. The signal ends a process that has not set its handler yet, which is
# set when queries are answered; and Docker does not restart what `docker kill` has ended.
reload_metrics() {
  local container="$COMPOSE_PROJECT_NAME-prometheus" second
  for second in $(seq "$METRICS_READY_SECONDS_MAX"); do
    if docker exec "$container" promtool query instant http://127.0.0.1:9090 'vector(1)' >/dev/null 2>&1; then
      docker kill --signal HUP "$container" >/dev/null
      return 0
    fi
    sleep 1
  done
  echo "Prometheus answers no query for $second s, so it may still use its old configuration; see: docker logs $container" >&2
}

# Copies the files of each container into its volume.
copy_files() {
  local name mounts=()
  [ -d "$FILES/containers" ] || return 0
  for name in $(ls "$FILES/containers"); do
    [[ $name != tablet-server-* ]] || [ "${name##*-}" -le "$SERVERS" ] || continue
    [ "$name" != prometheus ] || [ "$METRICS" = on ] || continue
    # As Compose labels its volumes, so that it takes them over.
    docker volume create --label "com.docker.compose.project=$COMPOSE_PROJECT_NAME" --label "com.docker.compose.volume=$name-files" \
      "${COMPOSE_PROJECT_NAME}_$name-files" >/dev/null
    mounts+=(--volume "${COMPOSE_PROJECT_NAME}_$name-files:/containers/$name")
  done
  # Only the user of the containers can read the copies, and not even that user can write them.
  tar -C "$FILES/containers" --owner "$CONTAINER_USER" --group "$CONTAINER_USER" --mode 'u=rX,go=' -c . \
    | docker run --rm --interactive --network none --user 0:0 --cap-drop ALL --cap-add CHOWN --cap-add DAC_OVERRIDE --cap-add FOWNER \
      --security-opt no-new-privileges --tmpfs /containers "${mounts[@]}" "$EBLA_IMAGE" tar -C /containers -x
}

# Runs a command of the operator in a container on the network of the cluster.
operator() {
  local files=()
  if [ "$SECURITY" = on ]; then
    files=(--volume "${COMPOSE_PROJECT_NAME}_operator-files:/etc/ebla:ro")
    files+=(--env EBLA_TLS_CA=/etc/ebla/ca.crt --env EBLA_TOKEN_FILE=/etc/ebla/operator.token)
  fi
  docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges --network "$COMPOSE_PROJECT_NAME" "${files[@]}" \
    --env EBLA_ADDR=tablet-server-1:8086,tablet-server-2:8086,tablet-server-3:8086 "$EBLA_IMAGE" "$@"
}

remove() {
  compose down --volumes --remove-orphans --timeout 10
  # Of servers that the compose file does not have.
  volumes | xargs --no-run-if-empty docker volume rm >/dev/null
  rm -rf "$FILES"
}

start() {
  local before=${PREVIOUS_IMAGE:-}
  shrink
  secure
  prepare_metrics
  copy_files
  local metrics_since
  metrics_since=$(prometheus_since)
  echo "starting containers"
  compose up --detach --remove-orphans
  # A Prometheus that starts reads its new files without being told.
  if [ "$METRICS" = on ] && [ -n "$metrics_since" ] && [ "$metrics_since" = "$(prometheus_since)" ]; then reload_metrics; fi
  # The previous image is now untagged. Docker keeps it if a container still uses it.
  if [ -n "$before" ] && [ "$before" != "$(docker image inspect --format '{{.Id}}' "$EBLA_IMAGE")" ]; then
    docker image rm "$before" >/dev/null 2>&1 || true
  fi
  # Uses a separate container, because those of the cluster may still be restarting.
  if ! operator ebla wait --addr tablet-server-1:8086 --servers "$SERVERS" --for "$READY_SECONDS_MAX"; then
    compose ps >&2
    echo "not ready; see: docker logs $COMPOSE_PROJECT_NAME-tablet-server-1 (or -master-1, -etcd-1)" >&2
    exit 1
  fi
  # Mounttables wait for these rights. They have none for other instances, and are no administrators.
  if [ "$SECURITY" = on ]; then
    operator ebla iam set --instance "${EBLA_NAMES_INSTANCE:-names}" --add roles/bigtable.admin=certificate:mounttable-1 \
      --add roles/bigtable.admin=certificate:mounttable-2 >/dev/null
  fi
  # A mounttable creates its table when the cluster is ready.
  if ! operator ebla wait --addr mounttable-1:8101 --for 60 >/dev/null; then
    echo "no mounttable is ready; see: docker logs $COMPOSE_PROJECT_NAME-mounttable-1" >&2
    exit 1
  fi
  tell
}

# Drains the tablet server at this address. On a busy machine no server may answer for a moment (code 6): then they are asked again.
drain() {
  local attempt
  for attempt in 1 2 3 4 5; do
    operator ebla server drain -o json "$1" && return
    [ "$?" = 6 ] && [ "$attempt" -lt 5 ] || return 1
    sleep 2
  done
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
    reply=$(drain "tablet-server-$number:8086")
    server=$(grep -o '"server": *[0-9]*' <<<"$reply" | grep -o '[0-9]*$')
    docker stop --time 60 "$container" >/dev/null
    operator timeout 60 sh -c "until ebla server remove $server; do sleep 1; done"
    docker rm --volumes "$container" >/dev/null
    docker volume rm "${COMPOSE_PROJECT_NAME}_tablet-server-$number" >/dev/null
    docker volume rm "${COMPOSE_PROJECT_NAME}_tablet-server-$number-files" >/dev/null 2>&1 || true
    rm -rf "$FILES/containers/tablet-server-$number"
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
  if [ "$METRICS" = on ]; then
    echo "  $COMPOSE_PROJECT_NAME-prometheus        figures and alerts at http://$(compose port prometheus 9090)/alerts"
  fi
  if [ "$SECURITY" = on ]; then tell_secure "$first"; else tell_plain "$first"; fi
}

tell_secure() {
  cat <<END

  Try   export EBLA_ADDR=$1 EBLA_TLS_CA=$FILES/ca/ca.crt EBLA_TOKEN_FILE=$FILES/containers/operator/operator.token
        ebla status
        ebla table create web --family anchor
        ebla set web com.cnn.www anchor:cnnsi.com=CNN
        docker kill $COMPOSE_PROJECT_NAME-tablet-server-2 $COMPOSE_PROJECT_NAME-tablet-server-3
        ebla scan web
        docker start $COMPOSE_PROJECT_NAME-tablet-server-2 $COMPOSE_PROJECT_NAME-tablet-server-3
        export MT_ROOT=$(compose port mounttable-1 8101) MT_TOKEN_FILE=\$EBLA_TOKEN_FILE
        ebla mt mount services/web 10.0.0.1:80; ebla mt resolve services/web

  Python: export GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=\$EBLA_TLS_CA, then
        token = open(os.environ["EBLA_TOKEN_FILE"]).read().strip()
        client = bigtable.Client(project="dev", admin=True, credentials=google.oauth2.credentials.Credentials(token),
                                 client_options=ClientOptions(api_endpoint="$1"))

  Another user: ebla token issue alice ${ISSUER[*]} --dir $FILES/tokens --out alice.token
                ebla iam set web --add roles/bigtable.reader=subject:alice

  Writes are on 2 of 3 disks before they are acknowledged. Every connection uses TLS, and every call needs a token: the operator's is valid for
  $TOKEN_LIFE, and make cluster issues a new one. The keys in $FILES are secret. SECURITY=off make cluster starts a cluster without both.
  make cluster-down removes the cluster.
END
}

tell_plain() {
  cat <<END

  Try   export BIGTABLE_EMULATOR_HOST=$1
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
