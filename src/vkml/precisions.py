"""The names of the precisions that products of float32 tensors are computed in, the most exact first."""

PRECISIONS = ("highest", "high", "medium")
