"""A gRPC server that answers every call with its name.

Prints {"port": N} when it is ready. Ends when its standard input does.
"""

import argparse
import json
import sys
from concurrent import futures

import grpc


class Handler(grpc.GenericRpcHandler):
    """Answers every method; messages are plain bytes."""

    def __init__(self, answer):
        self.answer = answer

    def service(self, call):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self.answer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    args = parser.parse_args()
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Handler(args.name.encode())])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(json.dumps({"port": port}), flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
