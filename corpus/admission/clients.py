"""The table of clients, how each of them runs, and the file of their verdicts."""

import dataclasses
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "clients.txt"


@dataclasses.dataclass(frozen=True)
class Client:
    """One version of a client, and the directory into which setup has installed it."""

    name: str
    version: str
    directory: pathlib.Path

    @property
    def key(self):
        return f"{self.name}@{self.version}"

    def is_envoy(self):
        return self.name == "envoy"

    def is_old_java(self):
        return self.name == "grpc-java" and tuple(map(int, self.version.split(".")[:2])) < (1, 78)

    def is_installed(self):
        return (self.directory / "complete").exists()

    def envoy(self):
        return str(self.directory / "envoy/_bin/envoy")

    def channels(self):
        """Returns the command that opens channels, and its environment."""
        environment = {**os.environ}
        if self.name == "grpcio":
            environment["PYTHONPATH"] = str(self.directory)
            command = [sys.executable, str(HERE / "grpc_channels.py")]
        elif self.name == "grpc-js":
            environment["NODE_PATH"] = str(self.directory / "node_modules")
            command = ["node", str(HERE / "grpc_channels.js")]
        elif self.name == "grpc-go":
            command = [str(self.directory / "grpc-channels")]
        else:
            command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp",
                       f"{self.directory}/classes:{self.directory}/lib/*", "GrpcChannels"]
        return command, environment


def table(directory):
    """Returns all clients of the table. The directory is that of the installed clients."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return [Client(name, version, pathlib.Path(directory) / "versions" / f"{name}-{version}")
            for name, version in lines]


def selected(clients, only):
    """Returns the clients that a list names: `grpc-java,envoy@1.37` are all versions of one and those of 1.37."""
    found = []
    for word in only.split(","):
        matching = [client for client in clients
                    if word in (client.name, client.key) or client.key.startswith(f"{word}.")]
        if not matching:
            known = ", ".join(client.key for client in clients)
            raise SystemExit(f"{word} is not in {TABLE.name}: {known}")
        found += [client for client in matching if client not in found]
    return found


def load(path):
    """Returns the recorded verdicts by the names of the cases and the keys of the clients."""
    try:
        recorded = json.loads(pathlib.Path(path).read_text())
    except FileNotFoundError:
        return {}
    verdicts = {}
    for case, groups in recorded.items():
        verdicts[case] = {}
        for group in groups:
            verdict = {key: value for key, value in group.items() if key != "clients"}
            for word in group["clients"].split():
                name, _, versions = word.partition("@")
                for version in versions.split(","):
                    verdicts[case][f"{name}@{version}"] = verdict
    return verdicts


def save(path, verdicts, clients):
    """Writes one line per case. Clients with the same verdict share a group; clients outside the table are left out."""
    lines = []
    for case, of_case in sorted(verdicts.items()):
        groups = {}
        for client in clients:
            if client.key in of_case:
                text = json.dumps(of_case[client.key], sort_keys=True, ensure_ascii=False)
                groups.setdefault(text, []).append(client)
        entries = [{"clients": shortened(group), **json.loads(text)} for text, group in groups.items()]
        lines.append(f"{json.dumps(case)}: {json.dumps(entries, ensure_ascii=False)}")
    pathlib.Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def shortened(clients):
    """Returns `envoy@1.36.4,1.37.0 grpcio@1.85.1`."""
    versions = {}
    for client in clients:
        versions.setdefault(client.name, []).append(client.version)
    return " ".join(f"{name}@{','.join(of_name)}" for name, of_name in versions.items())
