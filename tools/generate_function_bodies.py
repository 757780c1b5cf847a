"""Generates `src/vkml/onnx/function_bodies.onnx`: bodies of the operators that ONNX defines as functions.

They come with the PyPI package `onnx`; `PINNED` names the version the checked-in file was made with, so that
a test can repeat the generation and compare. Run it as

    python tools/generate_function_bodies.py            # rewrites the checked-in file
    python tools/generate_function_bodies.py --check    # exit status 1 when the file is out of date

The file is a model without nodes: its functions are the bodies, of each version of an operator that states
one, with that version as the `overload`. Bodies that ONNX builds for a node, by its types, attributes and the
inputs that are there, are no data: vkml has operators of its own for these (`docs/architecture.md`).
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, defs, helper

PINNED = "1.23.2"
OUTPUT = Path(__file__).resolve().parent.parent / "src" / "vkml" / "onnx" / "function_bodies.onnx"


def bodies() -> Iterator[FunctionProto]:
    """A body of each version of an operator, in the newest opset that it is stated in.

    A version whose successor is no plain function any more would stand for that, too, so it is left out.
    """
    versions: dict[tuple[str, str], list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        versions.setdefault((schema.domain, schema.name), []).append(schema)
    for _, schemas in sorted(versions.items()):
        found: list[FunctionProto] = []
        for schema in sorted(schemas, key=lambda schema: schema.since_version):
            if schema.has_function:
                found.append(_body(schema))
            else:
                found.clear()
        yield from found


def _body(schema: Any) -> FunctionProto:
    body = FunctionProto()
    stated = schema.get_function_with_opset_version(max(schema.function_opset_versions))
    body.ParseFromString(stated if isinstance(stated, bytes) else stated.SerializeToString())
    body.name, body.domain, body.overload = schema.name, schema.domain, str(schema.since_version)
    body.ClearField("doc_string")
    for node in body.node:
        node.ClearField("doc_string")
    # What a node leaves out has the operator's default, which only its schema states.
    attributes = [schema.attributes[name] for name in body.attribute]
    body.ClearField("attribute")
    for attribute in attributes:
        if attribute.default_value.name:
            body.attribute_proto.add().CopyFrom(attribute.default_value)
        else:
            body.attribute.append(attribute.name)
    return body


def generate() -> bytes:
    """The file's bytes."""
    model = helper.make_model(
        helper.make_graph([], "functions", [], []),
        functions=list(bodies()),
        opset_imports=[helper.make_opsetid("", defs.onnx_opset_version())],
        ir_version=10,
        producer_name="onnx",
        producer_version=PINNED,
    )
    return bytes(model.SerializeToString(deterministic=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, rewrite nothing")
    arguments = parser.parse_args()
    if onnx.__version__ != PINNED:
        print(f"made with onnx {PINNED}, {onnx.__version__} is installed", file=sys.stderr)
        return 1
    made = generate()
    if not arguments.check:
        OUTPUT.write_bytes(made)
    return 0 if OUTPUT.read_bytes() == made else 1


if __name__ == "__main__":
    sys.exit(main())
