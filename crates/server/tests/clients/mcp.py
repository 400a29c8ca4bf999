"""The messages and services of the Mesh Configuration Protocol, as descriptors."""

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

PACKAGE = "istio.mcp.v1alpha1"
FIELD = descriptor_pb2.FieldDescriptorProto
# (name, number, type, repeated); a type with a dot is a message, "map" is map<string, string>.
MESSAGES = {
    "SinkNode": [("id", 1, "string", False), ("annotations", 2, "map", True)],
    "Metadata": [
        ("name", 1, "string", False),
        ("create_time", 2, ".google.protobuf.Timestamp", False),
        ("version", 3, "string", False),
        ("labels", 4, "map", True),
        ("annotations", 5, "map", True),
    ],
    "Resource": [
        ("metadata", 1, f".{PACKAGE}.Metadata", False),
        ("body", 2, ".google.protobuf.Any", False),
    ],
    "Status": [("code", 1, "int32", False), ("message", 2, "string", False)],
    "RequestResources": [
        ("sink_node", 1, f".{PACKAGE}.SinkNode", False),
        ("collection", 2, "string", False),
        ("initial_resource_versions", 3, "map", True),
        ("response_nonce", 4, "string", False),
        # The message is google.rpc.Status. Only the numbers of its fields are on the wire.
        ("error_detail", 5, f".{PACKAGE}.Status", False),
        ("incremental", 6, "bool", False),
    ],
    "Resources": [
        ("system_version_info", 1, "string", False),
        ("collection", 2, "string", False),
        ("resources", 3, f".{PACKAGE}.Resource", True),
        ("removed_resources", 4, "string", True),
        ("nonce", 5, "string", False),
        ("incremental", 6, "bool", False),
    ],
}
SCALARS = {"string": FIELD.TYPE_STRING, "int32": FIELD.TYPE_INT32, "bool": FIELD.TYPE_BOOL}


def _file():
    file = descriptor_pb2.FileDescriptorProto(name="mcp.proto", package=PACKAGE, syntax="proto3")
    file.dependency.extend([any_pb2.DESCRIPTOR.name, timestamp_pb2.DESCRIPTOR.name])
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind == "map":
                entry = "".join(part.capitalize() for part in field.split("_")) + "Entry"
                nested = message.nested_type.add(name=entry)
                nested.options.map_entry = True
                for at, part in enumerate(["key", "value"], start=1):
                    nested.field.add(
                        name=part, number=at, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING
                    )
                added.type, added.type_name = FIELD.TYPE_MESSAGE, f".{PACKAGE}.{name}.{entry}"
            elif kind in SCALARS:
                added.type = SCALARS[kind]
            else:
                added.type, added.type_name = FIELD.TYPE_MESSAGE, kind
    return file


descriptor_pool.Default().Add(_file())


def message(name):
    found = descriptor_pool.Default().FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(found)


RequestResources = message("RequestResources")
Resources = message("Resources")
Resource = message("Resource")
SOURCE = f"/{PACKAGE}.ResourceSource/EstablishResourceStream"
SINK = f"/{PACKAGE}.ResourceSink/EstablishResourceStream"
