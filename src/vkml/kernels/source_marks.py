"""Marks in kernels' sources: who writes them need not load the compiler."""

PHASE = "\n#phase\n"
"""Stands in a source before each program that is a phase of the first one: see `slang.Compilation`."""
