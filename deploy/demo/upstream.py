"""The upstream of the demo: answers "hello from NAME" over HTTP and over gRPC.

Exits when its standard input closes, so that it never outlives the demo.
"""

import argparse
import http.server
import sys
import threading
from concurrent import futures

import grpc


def http_handler(answer):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format, *args):
            pass

    return Handler


class Greeter(grpc.GenericRpcHandler):
    """Answers /demo.Greeter/Hello. Messages are plain bytes."""

    def __init__(self, answer):
        self.answer = answer

    def service(self, call):
        if call.method != "/demo.Greeter/Hello":
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self.answer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--http", type=int, required=True)
    parser.add_argument("--grpc", type=int, required=True)
    args = parser.parse_args()
    answer = f"hello from {args.name}".encode()

    web = http.server.ThreadingHTTPServer(("127.0.0.1", args.http), http_handler(answer))
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()

    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Greeter(answer)])
    server.add_insecure_port(f"127.0.0.1:{args.grpc}")
    server.start()

    print("ready", flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
