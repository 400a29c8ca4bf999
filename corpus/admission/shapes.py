"""Asks a real Envoy for its verdict on every shape, and writes shapes/verdicts.json.

A shape is a whole bootstrap. `envoy --mode validate` reads it, builds its listeners and clusters, and ends.
"""

import argparse
import concurrent.futures
import glob
import json
import pathlib
import re
import subprocess
import tempfile

SHAPES = pathlib.Path(__file__).resolve().parent / "shapes"
MESSAGE_CHARS_MAX = 300
SECONDS_MAX = 60


def message(output):
    """Returns the reason in the output of Envoy, without what differs from run to run."""
    text = re.sub(r"goo\.gle/debug\w+", "", output)
    text = re.sub(r"\s+", " ", text)
    for pattern in (r"Proto constraint validation failed \((.*?)\)", r"(could not find @type '[^']*')",
                    r"(unable to parse JSON as proto.*?)(?:\{|$)",
                    r"error initializing configuration '[^']*': (.*?)(?: \[20\d\d-|$)"):
        found = re.search(pattern, text)
        if found:
            return found[1].strip()[:MESSAGE_CHARS_MAX]
    return text.strip()[-MESSAGE_CHARS_MAX:]


def verdict(envoy, path):
    with tempfile.TemporaryDirectory() as directory:
        # The content of a bootstrap is not in the message.
        copy = pathlib.Path(directory) / "shape.yaml"
        copy.write_text(path.read_text())
        command = [envoy, "--mode", "validate", "--config-path", str(copy), "--log-level", "critical"]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS_MAX)
    if ended.returncode == 0:
        return {"verdict": "accepted"}
    kind = "rejected" if ended.returncode == 1 else "crashed"
    return {"verdict": kind, "message": message(ended.stderr + ended.stdout)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", required=True, help="the directory of the real clients")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    arguments = parser.parse_args()
    envoy = glob.glob(f"{arguments.clients}/lib/python3*/site-packages/envoy/_bin/envoy")[0]
    paths = sorted(SHAPES.glob("*/*.yaml"))
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = pool.map(lambda path: verdict(envoy, path), paths)
        found = {path.stem: one for path, one in zip(paths, verdicts)}
    (SHAPES / "verdicts.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    n_rejected = sum(one["verdict"] != "accepted" for one in found.values())
    print(f"{len(found)} shapes, {n_rejected} of them rejected")


if __name__ == "__main__":
    main()
