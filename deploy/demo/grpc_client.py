"""A proxyless gRPC client: finds its service through xDS and calls it.

Prints each answer that differs from the one before. Exits 1 at the first failed call.
Needs GRPC_XDS_BOOTSTRAP in its environment.
"""

import argparse
import sys
import time

import grpc


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="xds:///greeter.demo")
    parser.add_argument("--until", help="stop, with success, at this answer")
    parser.add_argument("--seconds", type=float, default=60.0, help="give up after this time")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds

    with grpc.insecure_channel(args.target) as channel:
        hello = channel.unary_unary("/demo.Greeter/Hello")
        last = None
        while time.monotonic() < deadline:
            try:
                answer = hello(b"", timeout=20, wait_for_ready=last is None).decode()
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
        return 0
    print(f"no {args.until!r} within {args.seconds} s", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
