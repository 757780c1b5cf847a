"""Compares vkml with other runtimes, side by side in one run: ``python -m benchmarks --help``."""
