"""A proxyless gRPC client that makes calls continuously, through one channel per target.

It answers each line of standard input with one line, the results of the calls since the last one:
{"answers": {text: count}, "failed": {reason: count}}. It ends at the end of standard input.
It needs GRPC_XDS_BOOTSTRAP in its environment.
"""

import argparse
import collections
import json
import sys
import threading
import time

import grpc

PAUSE_SECONDS = 0.002
# Long enough for a busy machine. A longer call counts as failed.
TIMEOUT_SECONDS = 10


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.answers = collections.Counter()
        self.failed = collections.Counter()

    def answered(self, text):
        with self.lock:
            self.answers[text] += 1

    def failure(self, reason):
        with self.lock:
            self.failed[reason] += 1

    def take(self):
        with self.lock:
            taken = {"answers": dict(self.answers), "failed": dict(self.failed)}
            self.answers.clear()
            self.failed.clear()
            return taken


def call_for_ever(target, tally):
    channel = grpc.insecure_channel(target)
    hello = channel.unary_unary("/e2e.Greeter/Hello")
    while True:
        try:
            tally.answered(hello(b"", timeout=TIMEOUT_SECONDS).decode())
        except grpc.RpcError as error:
            tally.failure(f"{error.code().name}: {error.details()}")
        time.sleep(PAUSE_SECONDS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True, action="append")
    args = parser.parse_args()
    tally = Tally()
    for target in args.target:
        threading.Thread(target=call_for_ever, args=(target, tally), daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(tally.take()), flush=True)


if __name__ == "__main__":
    main()
