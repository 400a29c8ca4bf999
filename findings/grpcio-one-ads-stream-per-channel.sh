#!/usr/bin/env bash
# Packages: grpcio 1.85.1, contrasted with @grpc/grpc-js 1.14.7 and @grpc/grpc-js-xds 1.14.1; xds-protos 1.85.0.
#
# Behavior: a grpcio process opens one ADS stream per channel target, here `xds:///a` and `xds:///b`.
# Two channels to one target share a stream. All streams share one connection and one node id.
# grpc-js opens a single ADS stream for all targets, and that stream asks for both listeners.
#
# Why it surprises: both targets use one bootstrap with one server and one node.
# The two gRPC implementations read the same bootstrap and behave differently.
#
# What follows: a control plane must size its stream limits by targets, not by processes or connections.
# Keep subscriptions per stream: neither the node id nor the peer address identifies one stream.
# Shared resources, such as one cluster behind both targets, are sent once per stream.
#
# Output seen:
#   grpcio: channels 3, streams 2, concurrent 2, connections 1, node ids 1, listeners per stream [['a'], ['b']]
#   grpc-js: channels 3, streams 1, concurrent 1, connections 1, node ids 1, listeners per stream [['a', 'b']]
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

python3 -m venv venv
venv/bin/pip install --quiet grpcio==1.85.1 xds-protos==1.85.0
echo '{"private": true}' >package.json
npm install --silent --no-audit --no-fund @grpc/grpc-js@1.14.7 @grpc/grpc-js-xds@1.14.1

cat >client.py <<'PY'
import grpc

channels = [grpc.insecure_channel(target) for target in ("xds:///a", "xds:///a", "xds:///b")]
for channel in channels:
    assert channel.unary_unary("/test.Echo/Echo")(b"hi", wait_for_ready=True, timeout=60) == b"hi"
PY
cat >client.js <<'JS'
const grpc = require('@grpc/grpc-js');
require('@grpc/grpc-js-xds').register();

const same = (bytes) => bytes;
const call = (client) => new Promise((resolve, reject) => client.makeUnaryRequest('/test.Echo/Echo', same, same,
  Buffer.from('hi'), { deadline: Date.now() + 60000 }, (error, reply) => (error ? reject(error) : resolve(reply))));
const clients = ['xds:///a', 'xds:///a', 'xds:///b'].map((t) => new grpc.Client(t, grpc.credentials.createInsecure()));
Promise.all(clients.map(call)).then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
JS
cat >observe.py <<'PY'
import json, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf.json_format import ParseDict

FILTERS = "type.googleapis.com/envoy.extensions.filters"
streams, live, peak = [], [], []

def resource(kind, name):
    if kind == "Listener":
        host = {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": ""}, "route": {"cluster": "echo"}}]}
        router = {"name": "router", "typed_config": {"@type": f"{FILTERS}.http.router.v3.Router"}}
        manager = f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"
        return {"name": name, "api_listener": {"api_listener": {
            "@type": manager, "route_config": {"virtual_hosts": [host]}, "http_filters": [router]}}}
    if kind == "Cluster":
        config = {"eds_config": {"ads": {}, "resource_api_version": "V3"}}
        return {"name": name, "type": "EDS", "eds_cluster_config": config}
    endpoint = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
    locality = {"locality": {"region": "here"}, "load_balancing_weight": 1, "lb_endpoints": [endpoint]}
    return {"cluster_name": name, "endpoints": [locality]}

class Ads(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def StreamAggregatedResources(self, requests, context):
        stream = {"peer": context.peer(), "node": None, "listeners": []}
        streams.append(stream)
        live.append(stream)
        peak.append(len(live))
        context.add_callback(lambda: live.pop())
        sent = {}
        for number, request in enumerate(requests, 1):
            kind, names = request.type_url.rsplit(".", 1)[1], sorted(request.resource_names)
            stream["node"] = stream["node"] or request.node.id
            if kind == "Listener":
                stream["listeners"] = names
            if sent.get(kind) != names:  # otherwise an ACK
                sent[kind] = names
                resources = [{"@type": request.type_url, **resource(kind, name)} for name in names]
                yield ParseDict({"type_url": request.type_url, "version_info": "1", "nonce": str(number),
                                 "resources": resources}, discovery_pb2.DiscoveryResponse())

def observe(client, command):
    streams.clear()
    peak.clear()
    subprocess.run(command, check=True, timeout=240, env={**os.environ, "GRPC_XDS_BOOTSTRAP": "bootstrap.json"})
    peers, nodes = ({stream[key] for stream in streams} for key in ("peer", "node"))
    listeners = sorted(stream["listeners"] for stream in streams)
    print(f"{client}: channels 3, streams {len(streams)}, concurrent {max(peak)}, connections {len(peers)}, "
          f"node ids {len(nodes)}, listeners per stream {listeners}")
    assert len(streams) == max(peak) and len(peers) == 1 and nodes == {"node"}, streams
    for _ in range(300):  # until the server sees that the client left
        if not live:
            return listeners
        time.sleep(0.1)
    raise SystemExit("a stream outlived its client")

server = grpc.server(ThreadPoolExecutor(16))
ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(Ads(), server)
echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", {"Echo": echo})])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with open("bootstrap.json", "w") as out:
    json.dump({"node": {"id": "node", "cluster": "example", "locality": {}}, "xds_servers": [{
        "server_uri": f"127.0.0.1:{port}", "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}]}, out)
try:
    assert observe("grpcio", [sys.executable, "client.py"]) == [["a"], ["b"]], "not one stream per target"
    assert observe("grpc-js", ["node", "client.js"]) == [["a", "b"]], "not one stream for all targets"
finally:
    server.stop(None)
PY
venv/bin/python observe.py
echo "ok: grpcio opens one ADS stream per channel target, and grpc-js one for all targets"
