"""Whole models trained: small in tests, at full size by `python -m tests.whole_models.full`."""
