"""A source of MCP by grpcio, whose messages come from standard input.

Without arguments it listens, and prints {"port": N} when it is ready. `--port N` selects the port. With HOST:PORT as its
argument, it connects to a sink there, again whenever the stream ends. It prints each request of a sink as one line of JSON. Each line of standard
input is a message in the JSON form of istio.mcp.v1alpha1.Resources. It ends at the end of standard input.
"""

import json
import queue
import sys
import threading
import time
from concurrent import futures

import grpc
from google.protobuf import duration_pb2  # The JSON of an `Any` needs the class of its content.
from google.protobuf import json_format

import mcp

OUTBOX = queue.Queue()


def show(requests):
    try:
        for request in requests:
            print(json_format.MessageToJson(request, indent=None), flush=True)
    except grpc.RpcError:
        pass


def messages(is_active):
    while is_active():
        try:
            yield OUTBOX.get(timeout=0.1)
        except queue.Empty:
            pass


def listen(port):
    def establish(requests, context):
        threading.Thread(target=show, args=(requests,), daemon=True).start()
        yield from messages(context.is_active)

    method = grpc.stream_stream_rpc_method_handler(
        establish,
        request_deserializer=mcp.RequestResources.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    service = grpc.method_handlers_generic_handler(
        f"{mcp.PACKAGE}.ResourceSource", {"EstablishResourceStream": method}
    )
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[service])
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print(json.dumps({"port": port}), flush=True)
    return server


def connect(address):
    # Without a connection, gRPC would wait longer and longer between attempts.
    options = [("grpc.max_reconnect_backoff_ms", 500)]
    stream = grpc.insecure_channel(address, options).stream_stream(
        mcp.SINK,
        request_serializer=mcp.Resources.SerializeToString,
        response_deserializer=mcp.RequestResources.FromString,
    )
    while True:
        ended = threading.Event()
        show(stream(messages(lambda: not ended.is_set()), wait_for_ready=True))
        ended.set()
        time.sleep(0.2)


def main():
    if sys.argv[1:2] == ["--port"]:
        server = listen(int(sys.argv[2]))
    elif len(sys.argv) > 1:
        threading.Thread(target=connect, args=(sys.argv[1],), daemon=True).start()
    else:
        server = listen(0)  # Without a reference, grpcio ends the server.
    for line in sys.stdin:
        OUTBOX.put(json_format.Parse(line, mcp.Resources()))


if __name__ == "__main__":
    main()
