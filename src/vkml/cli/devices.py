"""``vkml devices``: lists what models can run on."""

from __future__ import annotations

from typing import Any

from vkml.cli.output import console, print_json, show_lines
from vkml.engine.text_table import Column, text_table
from vkml.ir.wording import size

NOTABLE = (
    "float16",
    "bfloat16",
    "float8",
    "int8",
    "int64",
    "float64",
    "integer_dot",
    "cooperative_matrix",
    "cooperative_matrix2",
    "memory_budget",
    "timestamps",
)
"""Capabilities that are listed: those that decide which kernels a model gets."""


COLUMNS = (
    Column("name"),
    Column("title", is_cut=True),
    Column("type"),
    Column("Vulkan"),
    Column("memory", is_right=True),
)


def show_devices(*, everything: bool, as_json: bool) -> int:
    """Prints the devices; returns the exit code."""
    import vkml

    found = [describe_device(device) for device in vkml.devices(True if everything else None)]
    if as_json:
        print_json(found)
        return 0
    rows, notes = [], []
    for device in found:
        kind = f"{device['type']} (software)" if device["is_software"] else device["type"]
        memory = size(device["memory_bytes"])
        rows.append((device["name"], device["title"], kind, device["api_version"], memory))
        more = (device["driver"], ", ".join(device["capabilities"]).replace("_", " "))
        notes.append("; ".join(each for each in more if each))
    out = console()
    show_lines(out, text_table(COLUMNS, rows, out.width, notes))
    if all(device["name"] == "cpu" for device in found):
        out.print("No Vulkan device: no GPU with a Vulkan 1.3 driver, or no loader. vkml doctor says more;")
        out.print("vkml devices --all also lists software drivers.")
    return 0


def describe_device(device: Any) -> dict[str, Any]:
    """One device of `vkml.devices`, in plain values that go into JSON."""
    capabilities = getattr(device, "capabilities", None)
    return {
        "name": device.name,
        "title": device.title,
        "type": str(getattr(device.type, "value", device.type)),
        "driver": " ".join(each for each in (device.driver, getattr(device, "driver_info", "")) if each),
        "api_version": ".".join(str(part) for part in getattr(device, "api_version", ())),
        "memory_bytes": device.memory_bytes if device.name == "cpu" else device.device_memory_bytes,
        "capabilities": []
        if capabilities is None
        else [name for name in NOTABLE if getattr(capabilities, name)],
        "quirks": list(getattr(device, "quirks", ())),
        "is_software": device.is_software,
    }
