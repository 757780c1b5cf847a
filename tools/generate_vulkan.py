"""Generates `src/vkml/vulkan/_bindings.py`, the cffi declarations of Vulkan, from the Khronos registry.

The registry comes with the PyPI package `vulkan-object`; `PINNED` names the version the checked-in file was
made with, so that a test can repeat the generation and compare. Run it as

    python tools/generate_vulkan.py            # rewrites the checked-in file
    python tools/generate_vulkan.py --check    # exit status 1 when the file is out of date

Only what a compute engine needs is declared: core Vulkan 1.0-1.4 without its graphics entry points, and the
extensions listed below. Handles that are not dispatchable are declared as 64-bit integers, which is their ABI
and makes them plain Python ints.
"""

import argparse
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

PINNED = "1.4.366"
OUTPUT = Path(__file__).resolve().parent.parent / "src" / "vkml" / "vulkan" / "_bindings.py"

EXTENSIONS = (
    "VK_EXT_conditional_rendering",
    "VK_EXT_debug_utils",
    "VK_EXT_device_fault",
    "VK_EXT_external_memory_host",
    "VK_EXT_layer_settings",
    "VK_EXT_memory_budget",
    "VK_EXT_memory_priority",
    "VK_EXT_pageable_device_local_memory",
    "VK_EXT_pci_bus_info",
    "VK_EXT_shader_atomic_float",
    "VK_EXT_shader_atomic_float2",
    "VK_EXT_shader_float8",
    "VK_EXT_subgroup_size_control",
    "VK_EXT_validation_features",
    "VK_KHR_cooperative_matrix",
    "VK_KHR_external_memory_fd",
    "VK_KHR_external_semaphore_fd",
    "VK_KHR_pipeline_binary",
    "VK_KHR_pipeline_executable_properties",
    "VK_KHR_portability_enumeration",
    "VK_KHR_portability_subset",
    "VK_KHR_shader_bfloat16",
    "VK_KHR_shader_clock",
    "VK_KHR_shader_integer_dot_product",
    "VK_KHR_workgroup_memory_explicit_layout",
    "VK_NV_cooperative_matrix2",
)

# Names of commands and of optional structures that only drawing, presenting, images or descriptors need.
GRAPHICS = re.compile(
    r"Draw|RenderPass|Framebuffer|(?<!Conditional)Rendering|Graphics|Sampler|Image|Descriptor|Viewport|Scissor"
    r"|Blend|Depth|Stencil|CullMode|FrontFace|Primitive|Vertex|IndexBuffer|Rasteriz|LineWidth|LineStipple|Sparse"
    r"|Subpass|Multiview|InputAttachment|RenderArea|Tessellation|Surface|Swapchain|Video|Format"
)
HANDWRITTEN = {
    "VkBool32": "typedef uint32_t VkBool32;",
    "VkDeviceAddress": "typedef uint64_t VkDeviceAddress;",
    "VkDeviceSize": "typedef uint64_t VkDeviceSize;",
    "VkFlags": "typedef uint32_t VkFlags;",
    "VkFlags64": "typedef uint64_t VkFlags64;",
    "VkSampleMask": "typedef uint32_t VkSampleMask;",
}
PLAIN = {"void", "char", "float", "double", "size_t", "int"} | {
    f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class Selection:
    """The part of the registry that is declared: grows from the commands over every type they mention."""

    def __init__(self, registry: Any) -> None:
        self.registry = registry
        self.types: dict[str, str] = dict(HANDWRITTEN)  # in order of declaration
        self.constants: dict[str, int] = {}
        self.commands: list[str] = []
        self.structure_types: dict[str, int] = {}
        self._open: set[str] = set()
        self._sized = re.compile(r"\bVK_[A-Z0-9_]+\b")
        self._alias = {
            alias: item.name
            for table in (
                registry.structs,
                registry.enums,
                registry.bitmasks,
                registry.flags,
                registry.handles,
            )
            for item in table.values()
            for alias in item.aliases
        }

    def wanted(self, item: Any) -> bool:
        """Whether a registry entry is core, or comes with one of the listed extensions."""
        extensions = item.extensions or []
        if getattr(item, "protect", None) not in (None, "VK_ENABLE_BETA_EXTENSIONS"):
            return False
        if getattr(item, "version", None) is not None or not extensions:
            return True
        return any(extension in EXTENSIONS for extension in extensions)

    def add_command(self, command: Any) -> None:
        """Declares one command as a `PFN_` function pointer type."""
        for parameter in command.params:
            self.add_type(parameter.type)
        if command.returnType not in PLAIN:
            self.add_type(command.returnType)
        parameters = ", ".join(self._declaration(parameter) for parameter in command.params)
        self.commands.append(f"typedef {command.returnType} (*PFN_{command.name})({parameters});")

    def add_extending_structures(self) -> None:
        """Declares the wanted structures that may stand in a `pNext` chain of a declared one."""
        before = -1
        while before != len(self.types):
            before = len(self.types)
            for structure in sorted(self.registry.structs.values()):
                if (
                    structure.name in self.types
                    or GRAPHICS.search(structure.name)
                    or not self.wanted(structure)
                ):
                    continue
                if any(extended in self.types for extended in structure.extends):
                    self.add_type(structure.name)

    def add_type(self, name: str) -> None:
        """Declares one type, after the types it is made of."""
        name = self._alias.get(name, name)
        if name in PLAIN or name in self.types or name in self._open:
            return
        registry = self.registry
        self._open.add(name)
        if name in registry.structs:
            self._add_structure(registry.structs[name])
        elif name in registry.handles:
            dispatchable = registry.handles[name].dispatchable
            self.types[name] = f"typedef {'struct ' + name + '_T *' if dispatchable else 'uint64_t '}{name};"
        elif name in registry.flags:
            flags = registry.flags[name]
            if flags.bitmaskName is not None:
                self.add_type(flags.bitmaskName)
            self.types[name] = f"typedef uint{flags.bitWidth}_t {name};"
        elif name in registry.bitmasks:
            bitmask = registry.bitmasks[name]
            self.types[name] = f"typedef uint{bitmask.bitWidth}_t {name};"
            self._add_constants(bitmask.flags)
        elif name in registry.enums:
            self.types[name] = f"typedef int32_t {name};"
            if name not in ("VkStructureType", "VkFormat"):
                self._add_constants(registry.enums[name].fields)
        elif name in registry.funcPointers:
            pointer = registry.funcPointers[name]
            for parameter in pointer.params:
                self.add_type(parameter.type)
            parameters = ", ".join(self._declaration(parameter) for parameter in pointer.params) or "void"
            self.types[name] = f"typedef {pointer.returnType} (*{name})({parameters});"
        else:
            raise ValueError(f"the registry does not know the type {name}")

    def _add_structure(self, structure: Any) -> None:
        for member in structure.members:
            if not (member.pointer and member.type == structure.name):
                self.add_type(member.type)
        kind = "union" if structure.union else "struct"
        members = " ".join(f"{self._declaration(member)};" for member in structure.members)
        self.types[structure.name] = (
            f"typedef {kind} {structure.name} {structure.name};\n{kind} {structure.name} {{ {members} }};"
        )
        if structure.sType is not None:
            fields = self.registry.enums["VkStructureType"].fields
            (value,) = [field.value for field in fields if structure.sType in (field.name, *field.aliases)]
            self.structure_types[structure.name] = value

    def _add_constants(self, fields: list[Any]) -> None:
        for field in fields:
            # Who defines it, each with what must be there besides; empty for what came with the enumeration.
            places = field.definingRequirements
            if not places or any(self._defines(place, besides) for place, besides in places.items()):
                self.constants[field.name] = field.value

    def _defines(self, place: str, besides: str | None) -> bool:
        """Whether a version or an extension, together with what must be there besides, is among ours."""
        if place in EXTENSIONS or place.startswith("VK_VERSION"):
            return True
        # An extension that became core has bits for extensions that did not.
        extension = self.registry.extensions.get(place)
        is_core = extension is not None and (extension.promotedTo or "").startswith("VK_VERSION")
        return is_core and besides in EXTENSIONS

    def _declaration(self, item: Any) -> str:
        """One parameter or member in C, with array sizes as numbers and aliases resolved."""
        text = re.sub(r"\s+", " ", item.cDeclaration).strip().rstrip(",;")
        text = self._sized.sub(lambda match: str(self.registry.constants[match[0]].value), text)
        return re.sub(r"\bVk\w+\b", lambda match: self._alias.get(match[0], match[0]), text)


def select(registry: Any) -> Selection:
    """Chooses the commands, types and constants to declare."""
    selection = Selection(registry)
    for command in sorted(registry.commands.values()):
        if command.alias is None and not GRAPHICS.search(command.name) and selection.wanted(command):
            selection.add_command(command)
    selection.add_extending_structures()
    for name, constant in registry.constants.items():
        if name.startswith("VK_") and isinstance(constant.value, int):
            selection.constants[name] = constant.value
    return selection


def generate() -> str:
    """Returns the text of the bindings module."""
    from cffi import FFI
    from vulkan_object import get_vulkan_object  # type: ignore[import-untyped, unused-ignore]

    registry = get_vulkan_object()
    selection = select(registry)
    ffi = FFI()
    declarations = [*selection.types.values(), *selection.commands]
    declarations += [f"#define {name} {value}" for name, value in sorted(selection.constants.items())]
    ffi.cdef("\n".join(declarations))
    ffi.set_source("vkml.vulkan._bindings", None)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(ffi.compile(tmpdir=folder)).read_text(encoding="utf-8")
    tail = "\n".join(f"    {name!r}: {value}," for name, value in sorted(selection.structure_types.items()))
    return (
        '"""Vulkan declarations for cffi; generated by tools/generate_vulkan.py, not to be edited."""\n\n'
        f"{text}\nREGISTRY_VERSION = {version('vulkan-object')!r}\n\n"
        f"# Structure name -> value of its sType member.\nSTRUCTURE_TYPES = {{\n{tail}\n}}\n"
    )


def main() -> int:
    """Writes the module, or with --check compares it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare with the checked-in file instead of writing"
    )
    arguments = parser.parse_args()
    if version("vulkan-object") != PINNED:
        sys.exit(
            f"vulkan-object {PINNED} is needed, {version('vulkan-object')} is installed: "
            "install that, or change PINNED"
        )
    text = generate()
    if arguments.check:
        return 0 if OUTPUT.read_text(encoding="utf-8") == text else 1
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
