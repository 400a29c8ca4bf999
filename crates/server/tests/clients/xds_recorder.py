"""An xDS server over TLS that sends nothing. It prints the header `authorization` of each stream.

It prints {"port": N} when it is ready, and then {"authorization": text or null} for each stream. It ends each
stream when it reads a line, and itself at the end of standard input. Its argument is a directory with
server.pem, server.key and ca.pem, the CA of clients.
"""

import json
import pathlib
import sys
import threading
from concurrent import futures

import grpc


class Handler(grpc.GenericRpcHandler):
    def __init__(self):
        self.end = threading.Event()

    def service(self, call):
        headers = [value for key, value in call.invocation_metadata if key == "authorization"]
        print(json.dumps({"authorization": headers[0] if len(headers) == 1 else None}), flush=True)
        end = self.end

        def answer(requests, context):
            end.wait()
            yield from ()

        return grpc.stream_stream_rpc_method_handler(answer)

    def end_streams(self):
        previous, self.end = self.end, threading.Event()
        previous.set()


def main():
    files = pathlib.Path(sys.argv[1])
    read = lambda name: (files / name).read_bytes()
    pair = (read("server.key"), read("server.pem"))
    credentials = grpc.ssl_server_credentials([pair], read("ca.pem"), True)
    handler = Handler()
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[handler])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    print(json.dumps({"port": port}), flush=True)
    for _ in sys.stdin:
        handler.end_streams()
    handler.end_streams()
    server.stop(None)


if __name__ == "__main__":
    main()
