"""A proxyless gRPC client: resolves its service through xDS and calls it.

Prints each answer that differs from the previous one, until it is interrupted. Exits with 1 at the first failed call.
Requires the environment variable GRPC_XDS_BOOTSTRAP.
"""

import argparse
import math
import sys
import time

import grpc


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="xds:///greeter.demo")
    parser.add_argument("--until", help="exit with 0 at this answer")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time in seconds")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds

    with grpc.insecure_channel(args.target) as channel:
        hello = channel.unary_unary("/demo.Greeter/Hello")
        last = None
        while time.monotonic() < deadline:
            try:
                timeout = 60 if last is None else 20
                answer = hello(b"", timeout=timeout, wait_for_ready=last is None).decode()
            except grpc.RpcError as error:
                print(f"call failed: {error.code().name}: {error.details()}", flush=True)
                return 1
            if answer != last:
                print(answer, flush=True)
                last = answer
            if answer == args.until:
                return 0
            time.sleep(0.05)
    if args.until is None:
        print(f"stopped after {args.seconds} s", flush=True)
        return 0
    print(f"no {args.until!r} within {args.seconds} s", flush=True)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(0)
