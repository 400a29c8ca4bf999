"""Clients of Chancery with faults, for `cargo xtask alerts --faults`. Each command runs until it is killed.

subscribe   opens aggregated SotW streams for clusters, and answers, rejects, delays, or does nothing
flood       opens SotW streams that change their subscriptions to endpoints without a pause
load        sends load reports with a value that is not a number
handshake   connects to a port with TLS without a certificate
write       publishes clusters over HTTP
"""

import argparse
import asyncio
import http.client
import itertools
import socket
import ssl
import struct
import threading
import time

CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ENDPOINTS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
LRS = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"
IDENTITY = dict(request_serializer=None, response_deserializer=None)


def varint(number):
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes(encoded + bytearray([number]))


def field(number, content):
    """Returns a field of the wire format with a text, bytes, or a number."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def fields(message):
    """Returns the fields of a message by number. A later value of a field replaces an earlier one."""
    found, at = {}, 0

    def number():
        nonlocal at
        result = shift = 0
        while True:
            byte = message[at]
            at += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    while at < len(message):
        key = number()
        if key & 7 == 0:
            found[key >> 3] = number()
        else:
            size = number()
            found[key >> 3] = message[at : at + size]
            at += size
    return found


def request(node, names=(), version=b"", nonce=b"", error=None, kind=CLUSTER):
    parts = [field(1, version)] if version else []
    parts.append(field(2, field(1, node)))
    parts += [field(3, name) for name in names]
    parts.append(field(4, kind))
    parts += [field(5, nonce)] if nonce else []
    parts += [field(6, field(1, 3) + field(2, error))] if error else []
    return b"".join(parts)


async def stream(channel, args, index):
    """Serves one stream until it ends."""
    node = f"{args.node}-{index}"
    names = [f"name-{at}" for at in range(args.names)]
    call = channel.stream_stream(ADS, **IDENTITY)()
    await call.write(request(node, names))
    version = b""
    if args.never_read:
        await asyncio.Event().wait()
    for at in itertools.count():
        response = await call.read()
        if not isinstance(response, bytes):
            return
        if args.never_answer:
            continue
        await asyncio.sleep(args.first_answer_after if at == 0 else args.answer_after)
        shown = fields(response)
        if args.reject and args.reject.encode() in response:
            answer = request(node, names, version, shown[5], "the client rejects this resource")
        else:
            version = shown[1]
            answer = request(node, names, version, shown[5])
        await call.write(answer)


async def client(channel, args, index):
    """Opens a stream, and again when it ends."""
    import grpc

    await asyncio.sleep(index * args.arrive)
    while True:
        try:
            await stream(channel, args, index)
        except grpc.RpcError:
            pass
        await asyncio.sleep(args.again)


async def subscribe(args):
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 500)]
    channels = [
        grpc.aio.insecure_channel(address, options) for address in args.address.split(",")
    ]
    clients = (
        client(channels[index % len(channels)], args, index) for index in range(args.streams)
    )
    await asyncio.gather(*clients)


async def flood(args):
    import grpc

    async def client(index):
        channel = grpc.aio.insecure_channel(args.address, [("grpc.use_local_subchannel_pool", 1)])
        requests = [
            request(f"flood-{index}", [f"{kind}-{at}" for at in range(args.names)], kind=ENDPOINTS)
            for kind in ("even", "odd")
        ]
        while True:
            call = channel.stream_stream(ADS, **IDENTITY)()
            try:
                while True:
                    for encoded in requests:
                        await call.write(encoded)
            except grpc.RpcError:
                await asyncio.sleep(1)

    await asyncio.gather(*(client(index) for index in range(args.streams)))


async def load(args):
    import grpc

    not_a_number = varint(3 << 3 | 1) + struct.pack("<d", float("nan"))
    metric = field(1, "queue") + field(2, 1) + not_a_number
    report = field(1, "web") + field(2, field(2, 1) + field(5, metric))
    channel = grpc.aio.insecure_channel(args.address)
    while True:
        call = channel.stream_stream(LRS, **IDENTITY)()
        try:
            await call.write(field(1, field(1, "load")))
            await call.read()
            for _ in range(20):
                await call.write(field(2, report))
                await asyncio.sleep(0.5)
        except grpc.RpcError:
            await asyncio.sleep(0.5)


def handshake(args):
    host, port = args.address.split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=2) as connection:
                with context.wrap_socket(connection) as secure:
                    secure.recv(1)
        except OSError:
            pass
        time.sleep(0.2)


def write(args):
    made = itertools.count()
    pause = args.writers / args.rate if args.rate else 0

    def author(index):
        address = args.address.split(",")[0]
        connection = http.client.HTTPConnection(address, timeout=30)
        for at in made:
            begun = time.monotonic()
            names = [f"written-{index}"] + [f"large-{index}-{extra}" for extra in range(args.extra)]
            resources = ",".join(
                f'{{"@type": "{CLUSTER}", "name": "{name}", "alt_stat_name": "v{at}"}}'
                for name in names
            )
            body = f'{{"scope": "{args.scope}", "resources": [{resources}]}}'
            try:
                connection.request("POST", "/v1/apply", body)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
                time.sleep(0.2)
            time.sleep(max(0, pause - (time.monotonic() - begun)))

    for index in range(args.writers):
        threading.Thread(target=author, args=(index,), daemon=True).start()
    threading.Event().wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["subscribe", "flood", "load", "handshake", "write"])
    parser.add_argument("address", help="HOST:PORT, or a list of them, separated by commas")
    parser.add_argument("--node", default="fleet")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--names", type=int, default=0)
    parser.add_argument("--arrive", type=float, default=0.0)
    parser.add_argument("--again", type=float, default=0.5)
    parser.add_argument("--reject")
    parser.add_argument("--answer-after", type=float, default=0.0)
    parser.add_argument("--first-answer-after", type=float, default=0.0)
    parser.add_argument("--never-answer", action="store_true")
    parser.add_argument("--never-read", action="store_true")
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--extra", type=int, default=0)
    parser.add_argument("--scope", default="written")
    args = parser.parse_args()
    streams = {"subscribe": subscribe, "flood": flood, "load": load}
    if args.command in streams:
        asyncio.run(streams[args.command](args))
    else:
        {"handshake": handshake, "write": write}[args.command](args)


if __name__ == "__main__":
    main()
