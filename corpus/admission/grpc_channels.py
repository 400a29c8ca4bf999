"""Opens one channel per line item of standard input, each as an xDS client of its own.

The input is a line of JSON: [[target, bootstrap], ...]. The process ends at the end of the input.
"""

import json
import sys
import threading

import grpc

BOOTSTRAP = "grpc.TEST_ONLY_DO_NOT_USE_IN_PROD.xds_bootstrap_config"


def call(target, bootstrap):
    channel = grpc.insecure_channel(target, options=[(BOOTSTRAP, bootstrap)])
    hello = channel.unary_unary("/corpus.Greeter/Hello")
    while True:
        try:
            hello(b"", timeout=20, wait_for_ready=True)
        except grpc.RpcError as error:
            print(target, error.code(), error.details(), flush=True)
            threading.Event().wait(0.5)


def main():
    for target, bootstrap in json.loads(sys.stdin.readline()):
        threading.Thread(target=call, args=(target, bootstrap), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
