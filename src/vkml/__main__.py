"""Lets ``python -m vkml`` be the command line."""

from vkml.cli import main

main()
