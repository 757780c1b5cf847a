"""What separates the programs of a kernel's source: who writes one need not load the compiler."""

PHASE = "\n#phase\n"
"""Stands in a source before each program that is a phase of the first one: see `slang.Compilation`."""
