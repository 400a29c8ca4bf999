"""Asks real clients for their verdict on every case of the corpus, and writes verdicts.json.

Every case has a scope of its own in a Chancery server. A client that connects with the case's name as
its node ID receives that case, and the resources around it that make the client ask for it. The server
records which responses the client acknowledges and which it rejects.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import clients
import support

HERE = pathlib.Path(__file__).resolve().parent
# A client that has not answered after this time gets the verdict "hangs".
ANSWER_SECONDS = 8
# The time that a client has to connect. On a busy machine, grpc-js takes long to start.
CONNECT_SECONDS = 20
# The time after an acknowledgement in which a later rejection still counts.
GRACE_SECONDS = 0.15
# The variable of the environment that is set in the network of the script.
NETWORK = "CHANCERY_CORPUS_NETWORK"
MESSAGE_CHARS_MAX = 400
# The time after all acknowledgements in which a crash of a gRPC client still counts.
USE_SECONDS = 2
# The pause between two polls for a case of a batch. More polls would slow down the server.
BATCH_PAUSE_SECONDS = 0.4
# The number of channels that one process opens at a time.
GRPC_BATCH = 200
# The texts of failed calls that say nothing about the case: its endpoints lead to no backend, or its routes do not match
# the call.
NO_EFFECT = re.compile(
    r"(?i)connection refused|connect failed|failed to connect|error while dialing|io exception|no connection established"
    r"|network is unreachable|resolve host|name resolution|no such host|dns|connection (timed out|closed|reset)"
    r"|(no matching route|matched route was found|xds route matching)|virtual ?host|context deadline"
)


class Case:
    """One case: its file, the attributes of its head, and its stored resources."""

    def __init__(self, path):
        self.path = path
        self.name = path.stem
        self.text = path.read_text()
        self.head = {}
        for line in self.text.splitlines():
            if not line.startswith("# "):
                break
            key, _, value = line[2:].partition(": ")
            self.head[key] = value
        self.resources = []
        self.refusal = None

    def is_misplaced(self):
        """Returns whether the file is in the wrong part: the hash of the name decides."""
        is_held_out = hashlib.sha256(self.name.encode()).digest()[0] % 3 == 0
        return is_held_out != ("held-out" in self.path.parts)

    def is_asked(self, client):
        """Returns whether the head names the client, by its own name or by that of its group."""
        group = "envoy" if client.is_envoy() else "grpc"
        return not {client.name, group}.isdisjoint(self.head["ask"].split())

    def types(self):
        return {resource["type_url"] for resource in self.resources}


class Server:
    """A Chancery server with empty data, on free ports of the loopback interface."""

    def __init__(self, binary, directory):
        ports = [free_port() for _ in range(3)]
        self.xds, self.admin, raft = ports
        at = [f"127.0.0.1:{port}" for port in ports]
        log = open(directory / "server.log", "w")
        self.process = leashed(
            [binary, "serve", "--data-dir", str(directory / "data"),
             "--xds", at[0], "--admin", at[1], "--raft", at[2]],
            stdout=log, stderr=log,
        )
        end = time.monotonic() + 30
        while True:
            try:
                self.call("GET", "/readyz", decode=False)
                return
            except (OSError, urllib.error.URLError):
                if time.monotonic() > end or self.process.poll() is not None:
                    raise SystemExit(f"the server did not start: see {log.name}")
                time.sleep(0.05)

    def call(self, method, path, body=None, decode=True):
        url = f"http://127.0.0.1:{self.admin}{path}"
        data = None if body is None else body.encode()
        request = urllib.request.Request(url, data=data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if decode else content

    def apply(self, manifest, scope):
        """Stores a manifest. Returns the first problem if the server refuses it."""
        query = urllib.parse.urlencode({"scope": scope, **self.write_options})
        try:
            self.call("POST", f"/v1/apply?{query}", manifest)
            return None
        except urllib.error.HTTPError as error:
            refusal = json.loads(error.read())["error"]
            for problem in refusal.get("problems", []):
                return one_line(f"{problem['field_path']}: {problem['message']}")
            return one_line(refusal["message"])

    # A server that validates resources would refuse most bad cases before a client sees them.
    write_options = {"validation": "off"}

    def find_write_options(self):
        refusal = self.apply("resources: []", "probe")
        if refusal and "validation" in refusal:
            self.write_options = {}

    def node(self, name):
        """Returns the subscriptions of a node by type. None and nothing mean that it is not connected."""
        try:
            node = self.call("GET", f"/v1/nodes/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        found = {}
        for stream in node.get("node", node)["streams"]:
            for subscription in stream["subscriptions"]:
                found.setdefault(subscription["type_url"], []).append(subscription)
        return found


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def leashed(command, **options):
    """Starts a process that the kernel kills when this process ends."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], **options)


def one_line(text):
    """Removes what differs from run to run in the text of protobuf messages."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"goo\.gle/debug\w+ ?", "", text)
    return text[:MESSAGE_CHARS_MAX]


def judge(subscriptions, case):
    """Returns the verdict, or None while the client has not answered everything of the case."""
    for type_url, of_type in subscriptions.items():
        for subscription in of_type:
            if subscription["state"] == "nacked":
                verdict = {"verdict": "rejected", "message": one_line(subscription["nack_message"])}
                if type_url not in case.types():
                    verdict["type"] = type_url
                return verdict
    for type_url in case.types():
        of_type = subscriptions.get(type_url, [])
        if not any(subscription["state"] == "synced" for subscription in of_type):
            return None
    return {"verdict": "accepted"}


def wait_for_verdict(server, case, has_ended, pause=0.05):
    """Polls the server until the client has answered, has ended, or is too late."""
    end = time.monotonic() + CONNECT_SECONDS
    subscriptions = None
    while time.monotonic() < end:
        ended = has_ended()
        current = server.node(case.name)
        if current and subscriptions is None:
            end = time.monotonic() + ANSWER_SECONDS
        subscriptions = current or subscriptions
        verdict = judge(subscriptions, case) if subscriptions else None
        if verdict and verdict["verdict"] == "accepted" and not ended:
            time.sleep(GRACE_SECONDS)
            verdict = judge(server.node(case.name) or subscriptions, case) or verdict
        if verdict and not (ended and verdict["verdict"] == "accepted"):
            return verdict
        if ended:
            return {"verdict": "ends", "message": "the client ended"}
        time.sleep(pause)
    states = {
        type_url.rsplit(".", 1)[-1]: of_type[0]["state"]
        for type_url, of_type in sorted((subscriptions or {}).items())
    }
    return {"verdict": "hangs", "message": json.dumps(states)}


def wait_until_gone(server, cases):
    """Waits until no earlier client is connected under the names of the cases."""
    for case in cases:
        end = time.monotonic() + CONNECT_SECONDS
        # The server remembers a client after its streams have ended.
        while server.node(case.name):
            if time.monotonic() > end:
                raise SystemExit(f"a client that has ended is still connected as {case.name}")
            time.sleep(0.02)


def ask_envoy(server, case, binary, directory):
    wait_until_gone(server, [case])
    bootstrap = directory / f"{case.name}.json"
    bootstrap.write_text(json.dumps(support.envoy_bootstrap(case, server.xds)))
    log_path = directory / f"{case.name}.log"
    with open(log_path, "w") as log:
        envoy = leashed(
            [binary, "-c", str(bootstrap), "--disable-hot-restart", "--concurrency", "1",
             "--log-level", "critical"],
            stdout=log, stderr=log,
        )
    try:
        verdict = wait_for_verdict(server, case, lambda: envoy.poll() is not None)
    finally:
        envoy.kill()
        envoy.wait()
    if verdict["verdict"] == "ends":
        lines = log_path.read_text(errors="replace").splitlines()
        relevant = [line for line in lines if re.search(r"assert|Caught|exiting|error", line)]
        verdict["message"] = one_line(" ".join(relevant[:2]) or "Envoy ended")
    return verdict


def ask_batch(server, cases, client, directory):
    """Asks about all cases at once in one process. If it ends, asks about each half of the rest."""
    wait_until_gone(server, cases)
    channels = [[f"xds:///{support.target(case)}", support.grpc_bootstrap(case, server.xds)]
                for case in cases]
    command, environment = client.channels()
    stem = directory / f"{client.key}-{cases[0].name}-{len(cases)}"
    with open(f"{stem}.log", "w") as log, open(f"{stem}.calls", "w") as calls:
        process = leashed(command, env=environment, stdin=subprocess.PIPE, stdout=calls, stderr=log)
    verdicts = {}
    try:
        process.stdin.write(json.dumps(channels).encode() + b"\n")
        process.stdin.flush()
        with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
            answers = pool.map(
                lambda case: wait_for_verdict(server, case, lambda: process.poll() is not None, BATCH_PAUSE_SECONDS),
                cases)
            verdicts = {case.name: answer for case, answer in zip(cases, answers)}
        # A client may crash when it uses what it has acknowledged.
        time.sleep(USE_SECONDS)
        has_crashed = process.poll() is not None
    finally:
        process.kill()
        process.wait()
    if has_crashed:
        message = one_line(last_error(f"{stem}.log"))
        for name, answer in verdicts.items():
            if answer["verdict"] != "rejected":
                verdicts[name] = {"verdict": "ends", "message": message}
    else:
        add_effects(cases, verdicts, f"{stem}.calls")
    unclear = [case for case in cases if verdicts[case.name]["verdict"] == "ends"]
    if len(cases) > 1 and unclear and has_crashed:
        middle = (len(unclear) + 1) // 2
        for half in filter(None, (unclear[:middle], unclear[middle:])):
            verdicts |= ask_batch(server, half, client, directory)
    return verdicts


def add_effects(cases, verdicts, calls):
    """Replaces `accepted` by the effect, if the last call of the channel shows one."""
    last = {}
    for line in pathlib.Path(calls).read_text(errors="replace").splitlines():
        # The last line may be incomplete, and lines of two threads may be mixed.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            call = json.loads(line)
            last[call["channel"]] = call
    for number, case in enumerate(cases):
        call = last.get(number)
        if call is None or verdicts[case.name]["verdict"] != "accepted":
            continue
        verdicts[case.name] = effect(case, call["code"].upper(), call["details"] or "")


def effect(case, code, details):
    """Returns the verdict on an accepted case whose calls end with a status."""
    if code == "OK":
        return {"verdict": "works"}
    if "Panic!" in details:
        return {"verdict": "ends", "message": one_line(f"{code}: {details}")}
    if support.is_server(case) or code == "DEADLINE_EXCEEDED" or re.search(NO_EFFECT, details):
        return {"verdict": "accepted"}
    return {"verdict": "fails", "message": one_line(f"{code}: {details}")}


def last_error(path):
    lines = pathlib.Path(path).read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if re.search(r"Error:|panic:|assert", line)), "the client ended")


def ask(client, server, cases, arguments, directory):
    """Returns the client's verdicts by the names of the cases."""
    if client.is_envoy():
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            def answers(asked):
                found = pool.map(lambda case: ask_envoy(server, case, client.envoy(), directory), asked)
                return {case.name: answer for case, answer in zip(asked, found)}

            verdicts = answers(cases)
            late = [case for case in cases if verdicts[case.name]["verdict"] == "hangs"]
            return verdicts | answers(late)
    verdicts = {}
    with backend(directory):
        for start in range(0, len(cases), GRPC_BATCH):
            verdicts |= ask_batch(server, cases[start:start + GRPC_BATCH], client, directory)
        # A busy machine may have been too slow.
        late = [case for case in cases if verdicts[case.name]["verdict"] == "hangs"]
        for start in range(0, len(late), GRPC_BATCH):
            verdicts |= ask_batch(server, late[start:start + GRPC_BATCH], client, directory)
    return verdicts


def store(server, cases):
    """Stores all cases and what surrounds them."""
    server.find_write_options()
    refusal = server.apply(support.ASSIGNMENTS, "default")
    if refusal:
        raise SystemExit(f"the assignments are refused: {refusal}")
    for case in cases:
        case.refusal = server.apply(case.text, f"case/{case.name}")
    by_scope = {f"case/{case.name}": case for case in cases}
    for resource in server.call("GET", "/v1/resources")["resources"]:
        if resource["scope"] in by_scope:
            by_scope[resource["scope"]].resources.append(resource)
    documents = []
    for case in cases:
        if case.refusal:
            continue
        for group, around in (("envoy", support.around_envoy(case)), ("grpc", support.around_grpc(case))):
            if around:
                documents.append(json.dumps({"scope": f"{group}/{case.name}", "resources": around}))
    refusal = server.apply("\n---\n".join(documents), "default")
    if refusal:
        raise SystemExit(f"the surrounding resources are refused: {refusal}")


def ask_all(server, cases, selected, arguments, directory):
    """Asks each client about each case that is meant for it. Yields the verdicts of each client by case."""
    for client in selected:
        if not client.is_installed():
            print(f"{client.key} is not installed; its verdicts stay as they are")
            continue
        verdicts, asked = {}, []
        for case in cases:
            if not case.is_asked(client):
                continue
            if case.refusal:
                verdicts[case.name] = {"verdict": "refused by schema", "message": case.refusal}
            elif support.is_reachable(case, client):
                asked.append(case)
        start = time.monotonic()
        verdicts |= ask(client, server, asked, arguments, directory)
        print(f"{client.key}: {len(asked)} cases in {time.monotonic() - start:.0f} s", flush=True)
        yield client, verdicts


def record(path, client, verdicts, asked, names, table):
    """Replaces the verdicts of a client on the asked cases in the file. Cases that no longer exist are removed from it."""
    recorded = clients.load(path)
    merged = {name: recorded.get(name, {}) for name in names}
    for name, verdict in verdicts.items():
        merged[name][client.key] = verdict
    for name in asked - verdicts.keys():
        merged[name].pop(client.key, None)
    clients.save(path, merged, table)


@contextlib.contextmanager
def backend(directory):
    """Runs the server to which the calls of gRPC clients lead."""
    ports = [str(port) for port in support.BACKEND_PORTS]
    with open(directory / "backend.log", "w") as log:
        process = leashed([sys.executable, str(HERE / "grpc_backend.py"), *ports],
                          stdout=subprocess.PIPE, stderr=log)
    if not process.stdout.readline():
        raise SystemExit(f"the backend did not start: see {log.name}")
    try:
        yield
    finally:
        process.kill()
        process.wait()


def enter_network():
    """Continues in a network of its own, in which all addresses of the cases lead to this machine.

    Without it, the clients would connect to whatever has these addresses.
    """
    if os.environ.get(NETWORK):
        return
    setup = "ip link set lo up && ip route add local 10.0.0.0/8 dev lo && ip route add local 2001:db8::/32 dev lo"
    os.execvpe(
        "unshare",
        ["unshare", "--net", "--map-root-user", "sh", "-c", f'{setup} && exec "$@"', "sh",
         sys.executable, *sys.argv],
        {**os.environ, NETWORK: "1"},
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="the chancery binary")
    parser.add_argument("--clients", required=True, help="the directory of the real clients")
    parser.add_argument("--only", help="clients such as grpc-java,envoy@1.37.0; by default, all of clients.txt")
    parser.add_argument("--cases", default="", help="a regular expression for the names of cases")
    parser.add_argument("--jobs", type=int, default=2, help="Envoys at a time")
    parser.add_argument("--output", default=str(HERE / "verdicts.json"))
    parser.add_argument("--corpus", default=str(HERE), help="the directory of the cases")
    parser.add_argument("--keep", action="store_true", help="keep the logs, and print their directory")
    arguments = parser.parse_args()
    enter_network()
    table = clients.table(arguments.clients)
    selected = clients.selected(table, arguments.only) if arguments.only else table
    paths = sorted(pathlib.Path(arguments.corpus).glob("*/*/*/*.yaml"))
    cases = [Case(path) for path in paths if re.search(arguments.cases, path.stem)]
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise SystemExit(f"two cases have the name {[n for n in names if names.count(n) > 1][0]}")
    for case in cases:
        if case.is_misplaced():
            raise SystemExit(f"{case.path} belongs into the other part: tuning or held-out")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="chancery-corpus-"))
    server = Server(arguments.server, directory)
    try:
        store(server, cases)
        for client, verdicts in ask_all(server, cases, selected, arguments, directory):
            record(arguments.output, client, verdicts, {*names}, [path.stem for path in paths], table)
    finally:
        server.process.terminate()
        server.process.wait()
    if arguments.keep:
        print(directory)
    else:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
