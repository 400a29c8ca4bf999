#!/usr/bin/env bash
# Packages: com.linecorp.armeria:armeria-xds 1.35.0, with a server of grpcio 1.85.1 and xds-protos 1.85.0.
#
# Behavior: a server removes a listener: it sends an LDS response without it, and Armeria acknowledges the response.
# Armeria calls `onMissing` of the listener's watcher. `XdsHttpPreprocessor` of the same listener still sends each request
# to the endpoints of the removed listener.
#
# Why it surprises: the two objects read one bootstrap, and disagree about the same resource. In Envoy and in gRPC clients,
# the removal of a listener ends its traffic.
#
# What follows: the removal of a listener does not drain an Armeria client. Remove the endpoints to stop its traffic, or close the
# preprocessor in `onMissing`.
#
# Output seen:
#   before the removal: status 200
#   the watcher says: listener greeter is missing
#   after the removal was acknowledged: 50 of 50 requests with status 200
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

python3 -m venv venv
venv/bin/pip install --quiet grpcio==1.85.1 xds-protos==1.85.0
cat >pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>example</groupId>
  <artifactId>example</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>com.linecorp.armeria</groupId>
      <artifactId>armeria-xds</artifactId>
      <version>1.35.0</version>
    </dependency>
  </dependencies>
</project>
XML
mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=lib

cat >Client.java <<'JAVA'
import com.google.protobuf.util.JsonFormat;
import com.linecorp.armeria.client.WebClient;
import com.linecorp.armeria.xds.ListenerSnapshot;
import com.linecorp.armeria.xds.SnapshotWatcher;
import com.linecorp.armeria.xds.XdsBootstrap;
import com.linecorp.armeria.xds.XdsType;
import com.linecorp.armeria.xds.client.endpoint.XdsHttpPreprocessor;
import io.envoyproxy.envoy.config.bootstrap.v3.Bootstrap;
import java.nio.file.Files;
import java.nio.file.Path;

public final class Client {
    public static void main(String[] args) throws Exception {
        var bootstrap = Bootstrap.newBuilder();
        JsonFormat.parser().merge(Files.readString(Path.of("bootstrap.json")), bootstrap);
        var xds = XdsBootstrap.of(bootstrap.build());
        xds.listenerRoot("greeter").addSnapshotWatcher(new SnapshotWatcher<ListenerSnapshot>() {
            @Override
            public void snapshotUpdated(ListenerSnapshot snapshot) {
            }

            @Override
            public void onMissing(XdsType type, String name) {
                System.out.println(type + " " + name + " is missing");
            }
        });
        var client = WebClient.of(XdsHttpPreprocessor.ofListener("greeter", xds));
        for (; ; Thread.sleep(100)) {
            String status;
            try {
                status = client.get("/").aggregate().join().status().codeAsText();
            } catch (Exception error) {
                status = error.toString();
            }
            System.out.println("status " + status);
        }
    }
}
JAVA
cat >observe.py <<'PY'
import contextlib, functools, http.server, json, queue, subprocess, threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf.json_format import ParseDict

SOURCE = {"ads": {}, "resource_api_version": "V3"}
FILTERS = "type.googleapis.com/envoy.extensions.filters"
acknowledged = threading.Event()

class Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass

def resource(kind, name):
    if kind == "Listener":
        router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{FILTERS}.http.router.v3.Router"}}
        return {"name": name, "api_listener": {"api_listener": {
            "@type": f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "greeter",
            "rds": {"route_config_name": "routes", "config_source": SOURCE}, "http_filters": [router]}}}
    if kind == "RouteConfiguration":
        host = {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": ""}, "route": {"cluster": "greeter"}}]}
        return {"name": name, "virtual_hosts": [host]}
    if kind == "Cluster":
        return {"name": name, "type": "EDS", "connect_timeout": "1s", "eds_cluster_config": {"eds_config": SOURCE}}
    return endpoints(name, backend.server_port)

def endpoints(name, port):
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    endpoint = {"health_status": "HEALTHY", "endpoint": {"address": address}}
    return {"cluster_name": name, "endpoints": [{"locality": {"region": "here"}, "load_balancing_weight": 1, "lb_endpoints": [endpoint]}]}

def response(request, version, names):
    kind = request.type_url.rsplit(".", 1)[1]
    resources = [{"@type": request.type_url, **resource(kind, name)} for name in names]
    return ParseDict({"type_url": request.type_url, "version_info": version, "nonce": version,
                      "resources": resources}, discovery_pb2.DiscoveryResponse())

class Ads(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def StreamAggregatedResources(self, requests, context):
        responses = queue.Queue()
        context.add_callback(lambda: responses.put(None))
        threading.Thread(target=self.read, args=(requests, responses), daemon=True).start()
        return iter(responses.get, None)

    def read(self, requests, responses):
        with contextlib.suppress(grpc.RpcError):  # the client ends
            for request in requests:
                assert not request.HasField("error_detail"), request
                is_listener = request.type_url.endswith(".Listener")
                if not request.response_nonce:
                    responses.put(response(request, "1", sorted(request.resource_names)))
                if is_listener and request.version_info == "2":
                    acknowledged.set()
                elif is_listener:
                    self.remove = functools.partial(responses.put, response(request, "2", []))

backend = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
threading.Thread(target=backend.serve_forever, daemon=True).start()
ads = Ads()
server = grpc.server(ThreadPoolExecutor(8))
ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(ads, server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with open("bootstrap.json", "w") as out:
    json.dump({"node": {"id": "node", "cluster": "example"}, "dynamic_resources": {
        "ads_config": {"api_type": "GRPC", "transport_api_version": "V3",
                       "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},
        "lds_config": SOURCE, "cds_config": SOURCE,
    }, "static_resources": {"clusters": [
        {"name": "xds", "type": "STATIC", "load_assignment": endpoints("xds", port)}]}}, out)

client = subprocess.Popen(["java", "-XX:+UseSerialGC", "-cp", "lib/*", "Client.java"], stdout=subprocess.PIPE, text=True)
try:
    for line in client.stdout:
        if line == "status 200\n":
            break
    print("before the removal:", line.strip())
    assert line == "status 200\n", "the client ended"
    ads.remove()
    assert acknowledged.wait(30), "the removal was not acknowledged"
    for line in client.stdout:
        if line.endswith("missing\n"):
            break
    print("the watcher says:", line.strip().lower())
    after = [client.stdout.readline() for _ in range(50)]
    n_served = after.count("status 200\n")
    print(f"after the removal was acknowledged: {n_served} of {len(after)} requests with status 200")
    assert n_served == 50, after
finally:
    client.kill()
    client.wait()
    server.stop(None)
PY
timeout 240 venv/bin/python -u observe.py
echo "ok: Armeria's preprocessor still uses a removed listener"
