"""A sink of the Mesh Configuration Protocol, which connects to a source (--server) or listens (--port).

It keeps the accepted resources while it has no stream, and lists their versions when it opens another. It
rejects a response with a resource whose name ends with "bad". A listening sink first prints {"port": n}. It
requests its collections after the first message of the source, as Istio's sink does, or at once (--eager).

It answers each line of standard input with one line: {"collections": {collection: {name: {"version",
"labels", "body"}}}, "full": n, "differences": n, "rejected": n, "resources": n, "streams": n, "open": n,
"triggers": n, "ended": status or null}. The first four counts are those since the last line. The line
"reconnect" opens another stream first. It ends at the end of standard input.
"""

import argparse
import collections
import json
import queue
import sys
import threading
from concurrent import futures

import grpc

import mcp


class Held:
    """The accepted resources, and the counts of messages."""

    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.collections = {collection: {} for collection in args.collection}
        self.counts = collections.Counter()
        self.totals = collections.Counter()
        self.ended = None

    def first_requests(self):
        with self.lock:
            for collection, held in self.collections.items():
                request = mcp.RequestResources(
                    collection=collection, incremental=self.args.incremental
                )
                request.sink_node.id = self.args.node
                request.sink_node.annotations["team"] = "e2e"
                for name, resource in held.items():
                    request.initial_resource_versions[name] = resource.metadata.version
                yield request

    def take(self, response):
        """Returns the answer to a response."""
        answer = mcp.RequestResources(
            collection=response.collection,
            response_nonce=response.nonce,
            incremental=self.args.incremental,
        )
        with self.lock:
            held = self.collections.get(response.collection)
            if held is None:
                self.totals["triggers"] += 1
                answer.error_detail.code = grpc.StatusCode.UNIMPLEMENTED.value[0]
                return answer
            names = [resource.metadata.name for resource in response.resources]
            self.counts["differences" if response.incremental else "full"] += 1
            self.counts["resources"] += len(names)
            bad = [name for name in names if name.endswith("bad")]
            if bad:
                self.counts["rejected"] += 1
                answer.error_detail.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
                answer.error_detail.message = f"{bad[0]} is bad"
                return answer
            if not response.incremental:
                held.clear()
            for resource in response.resources:
                held[resource.metadata.name] = resource
            for name in response.removed_resources:
                held.pop(name, None)
        return answer

    def report(self):
        with self.lock:
            shown = {
                collection: {
                    name: {
                        "version": resource.metadata.version,
                        "labels": dict(resource.metadata.labels),
                        "body": resource.body.value.decode(),
                    }
                    for name, resource in held.items()
                }
                for collection, held in self.collections.items()
            }
            counts = ["full", "differences", "rejected", "resources"]
            report = {count: self.counts.pop(count, 0) for count in counts}
            report |= {total: self.totals[total] for total in ["streams", "open", "triggers"]}
            return report | {"collections": shown, "ended": self.ended}


class Client:
    """A sink that connects to a source."""

    def __init__(self, args, held):
        self.held = held
        self.channel = grpc.insecure_channel(args.server)
        self.call = None
        self.open()

    def open(self):
        if self.call:
            self.call.cancel()
        requests = queue.Queue()
        for request in self.held.first_requests():
            requests.put(request)
        stream = self.channel.stream_stream(
            mcp.SOURCE,
            request_serializer=mcp.RequestResources.SerializeToString,
            response_deserializer=mcp.Resources.FromString,
        )
        self.held.ended = None
        self.call = stream(iter(requests.get, None), wait_for_ready=True)
        threading.Thread(target=self.receive, args=(self.call, requests), daemon=True).start()

    def receive(self, call, requests):
        try:
            for response in call:
                requests.put(self.held.take(response))
            self.held.ended = "OK"
        except grpc.RpcError as error:
            self.held.ended = f"{error.code().name}: {error.details()}"


class Server(grpc.GenericRpcHandler):
    """A sink that sources connect to."""

    def __init__(self, args, held):
        self.held = held
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
        self.server.add_generic_rpc_handlers((self,))
        port = self.server.add_insecure_port(f"127.0.0.1:{args.port}")
        self.server.start()
        print(json.dumps({"port": port}), flush=True)

    def service(self, call):
        if call.method != mcp.SINK:
            return None
        return grpc.stream_stream_rpc_method_handler(
            self.establish,
            request_deserializer=mcp.Resources.FromString,
            response_serializer=mcp.RequestResources.SerializeToString,
        )

    def establish(self, responses, context):
        self.count(1)
        if not context.add_callback(lambda: self.count(-1)):
            # The stream has ended already.
            self.count(-1)
        try:
            if self.held.args.eager:
                yield from self.held.first_requests()
            for at, response in enumerate(responses):
                yield self.held.take(response)
                if at == 0 and not self.held.args.eager:
                    yield from self.held.first_requests()
        except grpc.RpcError:
            pass

    def count(self, n):
        with self.held.lock:
            self.held.totals["open"] += n
            self.held.totals["streams"] += max(n, 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--port", type=int)
    parser.add_argument("--node", required=True)
    parser.add_argument("--incremental", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("collection", nargs="+")
    args = parser.parse_args()
    held = Held(args)
    sink = Client(args, held) if args.server else Server(args, held)
    for line in sys.stdin:
        if line.strip() == "reconnect":
            sink.open()
        print(json.dumps(held.report()), flush=True)


if __name__ == "__main__":
    main()
