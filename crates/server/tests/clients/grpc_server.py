"""A gRPC server that answers every call with its name.

It prints {"port": N} when it is ready, and ends at the end of standard input. With --xds-port it
listens on that port with a configuration from xDS. It then needs GRPC_XDS_BOOTSTRAP in its environment,
and is ready before it serves.
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
    parser.add_argument("--xds-port", type=int)
    args = parser.parse_args()
    handlers = [Handler(args.name.encode())]
    by_xds = args.xds_port is not None
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=handlers, xds=by_xds)
    if by_xds:
        credentials = grpc.xds_server_credentials(grpc.insecure_server_credentials())
        port = server.add_secure_port(f"127.0.0.1:{args.xds_port}", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(json.dumps({"port": port}), flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
