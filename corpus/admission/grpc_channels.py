"""Opens one channel per item of standard input, each as an xDS client of its own.

The input is a line of JSON: [[target, bootstrap], ...]. The output is one line of JSON per call, with the
number of the channel and the status. The process ends at the end of the input.
"""

import json
import sys
import threading

import grpc

BOOTSTRAP = "grpc.TEST_ONLY_DO_NOT_USE_IN_PROD.xds_bootstrap_config"


def call(number, target, bootstrap):
    channel = grpc.insecure_channel(target, options=[(BOOTSTRAP, bootstrap)])
    hello = channel.unary_unary("/corpus.Greeter/Hello")
    while True:
        code, details = "OK", ""
        try:
            hello(b"", timeout=20)
        except grpc.RpcError as error:
            code, details = error.code().name, error.details()
        print(json.dumps({"channel": number, "code": code, "details": details}), flush=True)
        threading.Event().wait(0.5)


def main():
    for number, (target, bootstrap) in enumerate(json.loads(sys.stdin.readline())):
        threading.Thread(target=call, args=(number, target, bootstrap), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
