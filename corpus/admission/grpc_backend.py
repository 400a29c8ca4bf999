"""Answers every call of gRPC with an empty message, on the ports of the arguments."""

import concurrent.futures
import sys

import grpc


class Any(grpc.GenericRpcHandler):
    def service(self, _):
        return grpc.unary_unary_rpc_method_handler(lambda *_: b"")


def main():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([Any()])
    for port in sys.argv[1:]:
        if server.add_insecure_port(f"[::]:{port}") == 0:
            raise SystemExit(f"port {port} is in use")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
