"""Lowering: what a graph's nodes become, dispatches of a device's kernels or calls of machine code."""
