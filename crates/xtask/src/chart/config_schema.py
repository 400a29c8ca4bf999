"""Checks the JSON Schema of the configuration with a complete validator.

Arguments: the schema, and the printed configuration in JSON. The schema must be valid, accept the configuration, and
reject it with a further key, a wrong type or a value out of range.
"""
import copy
import json
import sys

import jsonschema

schema, config = (json.load(open(path)) for path in sys.argv[1:])
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)
validator.validate(config)
for section, key, value in [
    ("xds", "adress", "x"),
    ("xdss", "address", "x"),
    ("xds", "streams_max", 0),
    ("xds", "streams_max", "5"),
    ("log", "format", "xml"),
    ("shutdown", "timeout", 5),
    ("mcp", "sources", [{"name": "a"}]),
]:
    wrong = copy.deepcopy(config)
    wrong.setdefault(section, {})[key] = value
    if validator.is_valid(wrong):
        sys.exit(f"the schema of the configuration accepts {section}.{key} = {value!r}")
