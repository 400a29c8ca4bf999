"""Reads rendered manifests, validates them strictly, and prints them as JSON.

Arguments: VERSIONS (separated by commas), CRDS (a file with schemas), and files of manifests. Each object must have a
schema, either of Kubernetes or in CRDS. The output is {FILE: [OBJECT, ..]}. Errors go to standard error.
"""
import json
import sys

import jsonschema
import kubernetes_validate
import yaml

versions, crds, *files = sys.argv[1:]
with open(crds) as text:
    crds = json.load(text)
objects, n_errors = {}, 0
for path in files:
    with open(path) as text:
        objects[path] = [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item]
    for item in objects[path]:
        kind = f"{item.get('apiVersion')}/{item.get('kind')}"
        name = f"{path}: {kind} {item.get('metadata', {}).get('name')}"
        for version in versions.split(","):
            try:
                if kind in crds:
                    jsonschema.validate(item, crds[kind])
                else:
                    kubernetes_validate.validate(item, version, strict=True)
            except kubernetes_validate.SchemaNotFoundError as error:
                print(f"{name}: {error.message}", file=sys.stderr)
                n_errors += 1
            except jsonschema.ValidationError as error:
                at = ".".join(str(part) for part in error.absolute_path)
                print(f"{name}: Kubernetes {version}: {at}: {error.message}", file=sys.stderr)
                n_errors += 1
json.dump(objects, sys.stdout)
sys.exit(n_errors > 0)
