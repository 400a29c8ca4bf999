"""The resources and bootstraps around a case, which make a client ask for the case."""

import json

TYPE = "type.googleapis.com/"
LISTENER = TYPE + "envoy.config.listener.v3.Listener"
ROUTE = TYPE + "envoy.config.route.v3.RouteConfiguration"
SCOPED_ROUTE = TYPE + "envoy.config.route.v3.ScopedRouteConfiguration"
VIRTUAL_HOST = TYPE + "envoy.config.route.v3.VirtualHost"
CLUSTER = TYPE + "envoy.config.cluster.v3.Cluster"
ENDPOINT = TYPE + "envoy.config.endpoint.v3.ClusterLoadAssignment"
SECRET = TYPE + "envoy.extensions.transport_sockets.tls.v3.Secret"
RUNTIME = TYPE + "envoy.service.runtime.v3.Runtime"
EXTENSION = TYPE + "envoy.config.core.v3.TypedExtensionConfig"
GRPC_TYPES = {LISTENER, ROUTE, CLUSTER, ENDPOINT}

ADS = {"resource_api_version": "V3", "ads": {}}
TARGET = "corpus.test"
PORT = 18080
# The ports of the backend to which the calls of gRPC clients lead, at all addresses.
BACKEND_PORTS = (80, 81, 443, 8080, 50051)

# The node ID of a client is the name of a case.
ASSIGNMENTS = """
assignments:
- name: envoy
  match: {cluster: envoy}
  scopes: ["case/{node.id}", "envoy/{node.id}"]
- name: grpc
  match: {cluster: grpc}
  scopes: ["case/{node.id}", "grpc/{node.id}"]
"""


def any_of(name, **fields):
    return {"@type": TYPE + name, **fields}


ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": any_of("envoy.extensions.filters.http.router.v3.Router"),
}


def manager(**fields):
    filters = fields.pop("http_filters", [])
    return any_of(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="corpus", http_filters=[*filters, ROUTER], **fields,
    )


def listener(manager, **fields):
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "@type": LISTENER,
        "name": "corpus-support",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": PORT}},
        "filter_chains": [{"filters": [network], **fields}],
    }


def direct_routes():
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
    return {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [answer]}]}


def routes_to(clusters):
    routes = [{"match": {"prefix": f"/{name}"}, "route": {"cluster": name}} for name in clusters[1:]]
    routes.append({"match": {"prefix": ""}, "route": {"cluster": clusters[0]}})
    return {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]}


def rds(name):
    return {"route_config_name": name, "config_source": ADS}


def eds_cluster(name):
    return {
        "@type": CLUSTER, "name": name, "type": "EDS", "connect_timeout": "1s",
        "eds_cluster_config": {"eds_config": ADS},
    }


def tls_socket(side, **common):
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": any_of(f"envoy.extensions.transport_sockets.tls.v3.{side}TlsContext", **common),
    }


def around_secret(name, body):
    """Returns a listener or cluster that uses a secret, depending on its kind."""
    sds = {"name": name, "sds_config": ADS}
    if "validation_context" in body:
        socket = tls_socket("Upstream", common_tls_context={"validation_context_sds_secret_config": sds})
        return {**eds_cluster("corpus-support"), "type": "STATIC", "eds_cluster_config": None,
                "transport_socket": socket}
    if "generic_secret" in body:
        credential = any_of("envoy.extensions.http.injected_credentials.generic.v3.Generic", credential=sds)
        injector = any_of(
            "envoy.extensions.filters.http.credential_injector.v3.CredentialInjector",
            credential={"name": "envoy.http.injected_credentials.generic", "typed_config": credential})
        filters = [{"name": "envoy.filters.http.credential_injector", "typed_config": injector}]
        return listener(manager(route_config=direct_routes(), http_filters=filters))
    socket = tls_socket("Downstream", common_tls_context={"tls_certificate_sds_secret_configs": [sds]})
    return listener(manager(route_config=direct_routes()), transport_socket=socket)


def around_extension(name, body):
    """Returns a listener whose filter gets its configuration by discovery."""
    of_type = body.get("typed_config", {}).get("@type", "")
    discovery = {"config_source": ADS, "type_urls": [of_type or ROUTER["typed_config"]["@type"]]}
    if ".filters.network." in of_type:
        found = listener(manager(route_config=direct_routes()))
        found["filter_chains"][0]["filters"].insert(0, {"name": name, "config_discovery": discovery})
        return found
    filters = [{"name": name, "config_discovery": discovery}]
    return listener(manager(route_config=direct_routes(), http_filters=filters))


def around_scope():
    builder = {"fragments": [{"header_value_extractor": {
        "name": "x-scope", "element_separator": ";", "element": {"key": "scope", "separator": "="}}}]}
    scoped = {"name": "scopes", "scope_key_builder": builder, "rds_config_source": ADS,
              "scoped_rds": {"scoped_rds_config_source": ADS}}
    return listener(manager(scoped_routes=scoped))


def used_clusters(body):
    """Returns the names of the clusters to which routes refer."""
    found = set()
    if isinstance(body, list):
        found.update(*map(used_clusters, body))
    elif isinstance(body, dict):
        route = body.get("route", {})
        weighted = route.get("weighted_clusters", {}).get("clusters", [])
        found.update([route.get("cluster"), *(part.get("name") for part in weighted)])
        found.update(*map(used_clusters, body.values()))
    return found - {None, ""}


def children_of(cluster):
    """Returns the names of the clusters of which an aggregate cluster consists."""
    children = cluster.get("cluster_type", {}).get("typed_config", {}).get("clusters", [])
    return [child for child in children if isinstance(child, str) and child]


def service_of(cluster):
    """Returns the name of the assignment of an EDS cluster."""
    eds = cluster["body"].get("eds_cluster_config")
    service = (eds or {}).get("service_name") or cluster["name"]
    # The assignment of a structured name has a name of its own type.
    return None if eds is None or service.startswith("xdstp:") else service


def one_endpoint(cluster):
    """Returns an assignment with the endpoint of the backend."""
    address = {"socket_address": {"address": "127.0.0.1", "port_value": BACKEND_PORTS[0]}}
    locality = {"locality": {"zone": "a"}, "load_balancing_weight": 1,
                "lb_endpoints": [{"endpoint": {"address": address}}]}
    return {"@type": ENDPOINT, "cluster_name": cluster, "endpoints": [locality]}


def of(case, type_url):
    return [resource for resource in case.resources if resource["type_url"] == type_url]


def names(case, type_url):
    return [resource["name"] for resource in of(case, type_url)]


def around_envoy(case):
    """Returns the resources around a case that make Envoy ask for all its resources."""
    around = []
    if not of(case, CLUSTER):
        around += [eds_cluster(name) for name in names(case, ENDPOINT)]
    if of(case, LISTENER):
        return around
    if of(case, SCOPED_ROUTE):
        present = names(case, ROUTE)
        wanted = {scope["body"].get("route_configuration_name") for scope in of(case, SCOPED_ROUTE)}
        around += [{"@type": ROUTE, "name": name, **direct_routes()}
                   for name in sorted(wanted - {None, *present})]
        return [*around, around_scope()]
    if of(case, VIRTUAL_HOST):
        tables = sorted({name.split("/")[0] for name in names(case, VIRTUAL_HOST)})
        around += [{"@type": ROUTE, "name": name, "vhds": {"config_source": ADS}} for name in tables]
        return [*around, listener(manager(rds=rds(tables[0])))]
    for number, name in enumerate(names(case, ROUTE)):
        around.append({**listener(manager(rds=rds(name))), "name": f"corpus-{number}"})
        around[-1]["address"] = {"socket_address": {"address": "127.0.0.1", "port_value": PORT + number}}
    around += [around_secret(found["name"], found["body"]) for found in of(case, SECRET)][:1]
    around += [around_extension(found["name"], found["body"]) for found in of(case, EXTENSION)][:1]
    return around


def around_grpc(case):
    """Returns the resources around a case that make a gRPC client ask for all its resources."""
    around = []
    clusters = names(case, CLUSTER)
    if not clusters:
        clusters = names(case, ENDPOINT)
        around += [eds_cluster(name) for name in clusters]
    # gRPC clients compile some parts of routes only when their clusters are usable.
    used = used_clusters([resource["body"] for resource in case.resources if resource["type_url"] in
                          (LISTENER, ROUTE)])
    children = {child for cluster in of(case, CLUSTER) for child in children_of(cluster["body"])}
    for name in sorted((used | children) - {*names(case, CLUSTER), *names(case, ENDPOINT)}):
        around += [eds_cluster(name), one_endpoint(name)]
    services = {service_of(cluster) for cluster in of(case, CLUSTER)} - {None, *names(case, ENDPOINT)}
    around += [one_endpoint(name) for name in sorted(services - used - children)]
    if of(case, LISTENER):
        return around
    tables = names(case, ROUTE)
    if tables:
        routes = {"rds": rds(tables[0])}
    elif clusters:
        routes = {"route_config": routes_to(clusters)}
    else:
        return []
    api = {"@type": LISTENER, "name": TARGET, "api_listener": {"api_listener": manager(**routes)}}
    return [*around, api]


def is_server(case):
    """Returns whether the case has the listener of a gRPC server."""
    return any("api_listener" not in listener["body"] for listener in of(case, LISTENER))


def is_reachable(case, client):
    """Returns whether the client subscribes to a type of the case."""
    if client.is_envoy():
        return True
    # A channel of an old grpc-java does not survive a target that is the listener of a server.
    return bool(case.types() & GRPC_TYPES) and not (client.is_old_java() and is_server(case))


def target(case):
    """Returns the target of a gRPC channel: the name of the first listener."""
    return (names(case, LISTENER) or [TARGET])[0]


def envoy_bootstrap(case, xds):
    server = {"socket_address": {"address": "127.0.0.1", "port_value": xds}}
    protocol = any_of("envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                      explicit_http_config={"http2_protocol_options": {}})
    layers = [{"name": f"layer-{number}", "rtds_layer": {"name": name, "rtds_config": ADS}}
              for number, name in enumerate(names(case, RUNTIME))]
    return {
        "node": {"id": case.name, "cluster": "envoy"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "layered_runtime": {"layers": layers},
        "dynamic_resources": {
            "lds_config": ADS,
            "cds_config": ADS,
            "ads_config": {
                "api_type": "DELTA_GRPC", "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [{"envoy_grpc": {"cluster_name": "chancery"}}],
            },
        },
        "static_resources": {"clusters": [{
            "name": "chancery", "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {"cluster_name": "chancery", "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": server}}]}]},
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol},
        }]},
    }


def grpc_bootstrap(case, xds):
    return json.dumps({
        "node": {"id": case.name, "cluster": "grpc", "locality": {}},
        "xds_servers": [{
            "server_uri": f"127.0.0.1:{xds}",
            "channel_creds": [{"type": "insecure"}],
            "server_features": ["xds_v3"],
        }],
        # Names of the form xdstp:///TYPE/NAME.
        "authorities": {"": {}},
    })
