"""Convolutions on matrix units beside strict ones: layer by layer, whole models, and every tile."""
