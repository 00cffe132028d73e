#!/usr/bin/env bash
# Writes what the Prometheus of a cluster in containers reads, except its certificate: prometheus-files.sh FOLDER SERVERS SECURITY
#
# SERVERS is the number of tablet servers, SECURITY is on or off. The files are prometheus.yml, alerts.yml and targets.json.
set -euo pipefail
cd "$(dirname "$0")"
folder=$1 servers=$2 security=$3

main() {
  if [ "$security" = on ]; then cat monitoring/cluster.yml; else sed '/ # secure$/d' monitoring/cluster.yml; fi >"$folder/prometheus.yml"
  cp monitoring/alerts.yml "$folder/alerts.yml"
  targets >"$folder/targets.json"
}

# Every process of Ebla in compose.yaml, at the port of EBLA_HTTP.
targets() {
  local names
  mapfile -t names < <(printf '%s\n' master-{1,2} mounttable-{1,2}; seq -f 'tablet-server-%g' "$servers")
  printf '[{"targets": [%s]}]\n' "$(printf '"%s:8080", ' "${names[@]}" | sed 's/, $//')"
}

main
