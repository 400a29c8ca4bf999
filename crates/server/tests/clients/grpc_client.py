"""A proxyless gRPC client that makes calls continuously, through one channel per target.

It answers each line of standard input with one line, the results of the calls since the last one:
{"answers": {text: count}, "failed": {reason: count}}. The line "status" is answered with
{"status": hexadecimal ClientStatusResponse}. It ends at the end of standard input.
It needs GRPC_XDS_BOOTSTRAP in its environment. With CALL_USERS=N, the metadata "x-user" of the calls
has N values in turn, and "user answer" is counted.
"""

import argparse
import collections
import itertools
import json
import os
import sys
import threading
import time

import grpc
from grpc._cython import cygrpc

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


def call_for_ever(target, tally, n_users):
    channel = grpc.insecure_channel(target)
    hello = channel.unary_unary("/e2e.Greeter/Hello")
    for i in itertools.count():
        user = f"user-{i % n_users}" if n_users else None
        metadata = (("x-user", user),) if user else ()
        try:
            answer = hello(b"", timeout=TIMEOUT_SECONDS, metadata=metadata).decode()
            tally.answered(f"{user} {answer}" if user else answer)
        except grpc.RpcError as error:
            tally.failure(f"{error.code().name}: {error.details()}")
        time.sleep(PAUSE_SECONDS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True, action="append")
    args = parser.parse_args()
    tally = Tally()
    n_users = int(os.environ.get("CALL_USERS", "0"))
    for target in args.target:
        threading.Thread(target=call_for_ever, args=(target, tally, n_users), daemon=True).start()
    for line in sys.stdin:
        if line.strip() == "status":
            answer = {"status": cygrpc.dump_xds_configs().hex()}
        else:
            answer = tally.take()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
