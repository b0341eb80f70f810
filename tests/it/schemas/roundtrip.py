"""Random schemas with random documents, and what a reader that shares no code with Postrider makes of their bytes.

generate FORMAT SEED COUNT   prints a JSON line for each document: type, schema, document (as text)
verify FORMAT SEED COUNT     reads a JSON line for each record: type, index, hex; fails unless each equals its document
"""

import datetime
import decimal
import io
import json
import random
import struct
import sys
import tempfile
import uuid
from pathlib import Path

decimal.getcontext().prec = 100
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Raw(str):
    """A number as it is written."""


def text_of(value):
    """JSON with numbers as they are written."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value)


def number_text(rnd, value):
    """A whole number in one of its notations."""
    if value and value % 10 == 0 and rnd.random() < 0.3:
        return Raw(f"{value // 10}e1")
    return Raw(f"{value}.0" if rnd.random() < 0.1 else str(value))


class Avro:
    """A schema, a document of it, and the value that fastavro reads from its bytes."""

    def __init__(self, rnd):
        self.rnd = rnd
        self.names = 0

    def name(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def text(self):
        return "".join(self.rnd.choice("aZ0 _\"\\/\n\té€😀") for _ in range(self.rnd.randrange(8)))

    def whole(self, bits):
        edge = 1 << (bits - 1)
        return self.rnd.choice(
            [0, 1, -1, edge - 1, -edge, self.rnd.randrange(-edge, edge), self.rnd.randrange(-300, 300)]
        )

    def schema(self, depth):
        simple = ["null", "boolean", "int", "long", "float", "double", "string", "bytes", "enum", "fixed",
                  "decimal", "fixed-decimal", "uuid", "date", "time-millis", "time-micros", "timestamp-millis",
                  "timestamp-micros", "local-timestamp-micros"]
        nested = ["array", "map", "record", "union"]
        kind = self.rnd.choice(simple + (nested * 3 if depth < 4 else []))
        return self.of_kind(kind, depth)

    def of_kind(self, kind, depth):
        """The schema, and a function that makes a document and its value."""
        rnd = self.rnd
        if kind == "null":
            return "null", lambda: (None, None)
        if kind == "boolean":
            return "boolean", lambda: (lambda b: (b, b))(rnd.random() < 0.5)
        if kind in ("int", "long"):
            bits = 32 if kind == "int" else 64
            return kind, lambda: (lambda n: (number_text(rnd, n), n))(self.whole(bits))
        if kind == "double":
            return kind, lambda: (lambda n: (Raw(repr(n)), n))(rnd.choice([0.0, 1.5, rnd.uniform(-1e9, 1e9), 1e-300]))
        if kind == "float":
            def single():
                n = struct.unpack("<f", struct.pack("<f", rnd.uniform(-1e6, 1e6)))[0]
                return Raw(repr(n)), n
            return kind, single
        if kind == "string":
            return kind, lambda: (lambda t: (t, t))(self.text())
        if kind == "bytes":
            def some():
                b = bytes(rnd.randrange(1, 256) for _ in range(rnd.randrange(6)))
                return b.decode("latin-1"), b
            return kind, some
        if kind == "fixed":
            size = rnd.randrange(1, 9)
            def fixed():
                b = bytes(rnd.randrange(1, 256) for _ in range(size))
                return b.decode("latin-1"), b
            return {"type": "fixed", "name": self.name("F"), "size": size}, fixed
        if kind == "enum":
            symbols = [f"S{i}" for i in range(rnd.randrange(1, 5))]
            return ({"type": "enum", "name": self.name("E"), "symbols": symbols},
                    lambda: (lambda s: (s, s))(rnd.choice(symbols)))
        if kind.endswith("decimal"):
            precision = rnd.randrange(1, 40)
            scale = rnd.randrange(0, precision + 1)
            logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
            def number():
                unscaled = rnd.randrange(-(10 ** rnd.randrange(1, precision + 1)) + 1, 10 ** precision)
                value = decimal.Decimal(unscaled).scaleb(-scale)
                shown = f"{value:f}"
                return (shown if rnd.random() < 0.5 else Raw(shown)), value
            if kind == "decimal":
                return {"type": "bytes", **logical}, number
            return {"type": "fixed", "name": self.name("D"), "size": 18, **logical}, number
        if kind == "uuid":
            def of_uuid():
                value = uuid.UUID(int=rnd.getrandbits(128))
                return str(value), value
            return {"type": "string", "logicalType": "uuid"}, of_uuid
        if kind == "date":
            def date():
                value = datetime.date.fromordinal(rnd.randrange(1, 3_000_000))
                return (value.isoformat() if rnd.random() < 0.5 else Raw(value.toordinal() - 719163)), value
            return {"type": "int", "logicalType": "date"}, date
        if kind.startswith("time-"):
            unit = 1000 if kind.endswith("millis") else 1
            def time():
                micros = rnd.randrange(0, 86_400_000_000) // unit * unit
                value = (datetime.datetime.min + datetime.timedelta(microseconds=micros)).time()
                return value.isoformat(), value
            return {"type": "int" if unit == 1000 else "long", "logicalType": kind}, time
        if "timestamp" in kind:
            unit = 1000 if kind.endswith("millis") else 1
            def timestamp():
                micros = rnd.randrange(-10**15, 10**16) // unit * unit
                value = EPOCH + datetime.timedelta(microseconds=micros)
                if kind.startswith("local"):
                    value = value.replace(tzinfo=None)
                return value.isoformat(), value
            return {"type": "long", "logicalType": kind}, timestamp
        if kind == "array":
            items, make = self.schema(depth + 1)
            def array():
                pairs = [make() for _ in range(rnd.randrange(4))]
                return [p[0] for p in pairs], [p[1] for p in pairs]
            return {"type": "array", "items": items}, array
        if kind == "map":
            values, make = self.schema(depth + 1)
            def of_map():
                pairs = {f"k{i} é": make() for i in range(rnd.randrange(4))}
                return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}
            return {"type": "map", "values": values}, of_map
        if kind == "union":
            return self.union(depth)
        return self.record(depth)

    def union(self, depth):
        """Branches of different JSON types, so that a plain value is of one branch alone."""
        rnd = self.rnd
        kinds = [["boolean"], ["long", "int", "double"], ["string", "uuid", "enum"], ["array"], ["map", "record"]]
        if rnd.random() < 0.2:
            kinds = [[rnd.choice(["timestamp-micros", "date", "decimal"])]]
        rnd.shuffle(kinds)
        chosen = [rnd.choice(group) for group in kinds[: rnd.randrange(1, 4)]]
        branches = [("null", lambda: (None, None))] + [self.of_kind(kind, depth + 1) for kind in chosen]
        rnd.shuffle(branches)
        return [schema for schema, _ in branches], lambda: rnd.choice(branches)[1]()

    def record(self, depth):
        rnd = self.rnd
        fields = []
        for index in range(rnd.randrange(1, 6)):
            schema, make = self.schema(depth + 1)
            fields.append((f"f{index}", schema, make))
        schema = {"type": "record", "name": self.name("R"), "namespace": rnd.choice(["shop", "shop.inner"]),
                  "fields": [{"name": n, "type": s} for n, s, _ in fields]}
        defaults = rnd.random() < 0.3
        if defaults:
            schema["fields"].append({"name": "missing", "type": "long", "default": 7})
        def of_record():
            made = {name: make() for name, _, make in fields}
            order = list(made)
            rnd.shuffle(order)
            value = {name: made[name][1] for name in made}
            if defaults:
                value["missing"] = 7
            return {name: made[name][0] for name in order}, value
        return schema, of_record


def avro_cases(seed, count):
    for index in range(count):
        maker = Avro(random.Random(f"{seed} {index // 4}"))
        schema, make = maker.record(0)
        for _ in range(index % 4 + 1):
            document, value = make()
        yield f"T{index // 4}", schema, text_of(document), value


def avro_equal(schema, data, value):
    import fastavro

    stream = io.BytesIO(data)
    read = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema))
    assert stream.read() == b"", "there are more bytes"
    assert read == value, f"{read!r} is not {value!r}"


PROTO_TYPES = ["int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64",
               "bool", "string", "bytes", "double", "float", "Color", "Inner", "google.protobuf.Timestamp",
               "google.protobuf.Duration", "google.protobuf.Int64Value", "google.protobuf.StringValue",
               "google.protobuf.Struct", "google.protobuf.Value"]


def proto_value(rnd, kind, depth=0):
    ranges = {"int32": (-2**31, 2**31), "sint32": (-2**31, 2**31), "sfixed32": (-2**31, 2**31),
              "int64": (-2**63, 2**63), "sint64": (-2**63, 2**63), "sfixed64": (-2**63, 2**63),
              "google.protobuf.Int64Value": (-2**63, 2**63), "uint32": (0, 2**32), "fixed32": (0, 2**32),
              "uint64": (0, 2**64), "fixed64": (0, 2**64)}
    if kind in ranges:
        low, high = ranges[kind]
        number = rnd.choice([0, 1, low, high - 1, rnd.randrange(low, high)])
        return str(number) if "64" in kind and rnd.random() < 0.5 else Raw(number)
    if kind == "bool":
        return rnd.random() < 0.5
    if kind in ("string", "google.protobuf.StringValue"):
        return "".join(rnd.choice("aé😀\"\\\n ") for _ in range(rnd.randrange(6)))
    if kind == "bytes":
        import base64
        return base64.b64encode(rnd.randbytes(rnd.randrange(6))).decode()
    if kind == "double":
        return Raw(repr(rnd.uniform(-1e9, 1e9)))
    if kind == "float":
        return Raw(repr(struct.unpack("<f", struct.pack("<f", rnd.uniform(-1e6, 1e6)))[0]))
    if kind == "Color":
        return rnd.choice(["RED", "GREEN", Raw(1)])
    if kind == "Inner":
        inner = {"id": Raw(rnd.randrange(1000))}
        if depth < 3 and rnd.random() < 0.5:
            inner["inner"] = proto_value(rnd, "Inner", depth + 1)
        return inner
    if kind.endswith("Timestamp"):
        at = EPOCH + datetime.timedelta(microseconds=rnd.randrange(-10**15, 10**16))
        return at.isoformat().replace("+00:00", "Z")
    if kind.endswith("Duration"):
        return f"{rnd.randrange(-10**9, 10**9)}.{rnd.randrange(1000):03}s"
    if kind.endswith("Struct"):
        return {f"k{i}": proto_value(rnd, "google.protobuf.Value", depth + 1) for i in range(rnd.randrange(3))}
    choices = [None, True, "text", Raw(rnd.randrange(1000)), Raw(repr(rnd.random()))]
    if depth < 3:
        choices += [[proto_value(rnd, kind, depth + 1)], {"a": proto_value(rnd, kind, depth + 1)}]
    return rnd.choice(choices)


def protobuf_cases(seed, count):
    for index in range(count):
        rnd = random.Random(f"{seed} {index // 4}")
        lines = ['syntax = "proto3";', "package shop;", 'import "google/protobuf/timestamp.proto";',
                 'import "google/protobuf/duration.proto";', 'import "google/protobuf/wrappers.proto";',
                 'import "google/protobuf/struct.proto";', "enum Color { RED = 0; GREEN = 1; }",
                 "message Inner { int32 id = 1; Inner inner = 2; }", f"message T{index // 4} {{"]
        fields = []
        for number in range(1, rnd.randrange(3, 12)):
            kind = rnd.choice(PROTO_TYPES)
            form = rnd.choice(["", "optional ", "repeated ", "map"])
            if form == "optional " and kind.startswith("google"):
                form = ""
            key = rnd.choice(["string", "int64", "bool"])
            shown = f"map<{key}, {kind}>" if form == "map" else form + kind
            lines.append(f"  {shown} some_field{number} = {number * 7};")
            fields.append((number, kind, form, key))
        schema = "\n".join(lines + ["}"])
        for _ in range(index % 4 + 1):
            document = {}
            for number, kind, form, key in fields:
                name = rnd.choice([f"some_field{number}", f"someField{number}"])
                keys = {"string": ["a", "é"], "int64": ["-5", "9"], "bool": ["true", "false"]}[key]
                if form == "repeated ":
                    document[name] = [proto_value(rnd, kind) for _ in range(rnd.randrange(4))]
                elif form == "map":
                    document[name] = {k: proto_value(rnd, kind) for k in keys[: rnd.randrange(3)]}
                elif rnd.random() < 0.8:
                    document[name] = proto_value(rnd, kind)
        text = text_of(document)
        yield f"T{index // 4}", schema, text, text


MESSAGES = {}


def protobuf_equal(name, schema, data, text):
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2  # noqa: F401
    from grpc_tools import protoc
    import grpc_tools

    if schema not in MESSAGES:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "schema.proto").write_text(schema)
            google = Path(grpc_tools.__file__).parent / "_proto"
            arguments = ["protoc", f"-I{folder}", f"-I{google}", "--include_imports",
                         f"--descriptor_set_out={folder}/set", "schema.proto"]
            assert protoc.main(arguments) == 0
            files = descriptor_pb2.FileDescriptorSet.FromString(Path(folder, "set").read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        MESSAGES[schema] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
    message = MESSAGES[schema]
    read, expected = message.FromString(data), json_format.Parse(text, message())
    assert read == expected, f"{read} is not {expected}"


def main():
    command, form, seed, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    cases = list((avro_cases if form == "avro" else protobuf_cases)(seed, count))
    if command == "generate":
        for name, schema, document, _ in cases:
            shown = schema if isinstance(schema, str) else json.dumps(schema)
            print(json.dumps({"type": name, "schema": shown, "document": document}))
        return
    seen = set()
    for line in sys.stdin:
        record = json.loads(line)
        name, schema, document, value = cases[record["index"]]
        assert record["type"] == name
        try:
            if form == "avro":
                avro_equal(schema, bytes.fromhex(record["hex"]), value)
            else:
                protobuf_equal(name, schema, bytes.fromhex(record["hex"]), value)
        except Exception as error:
            sys.exit(f"{schema}\n{document}\n{record['hex']}\n{error!r}")
        seen.add(record["index"])
    assert len(seen) == count, f"{len(seen)} of {count} records"


main()
