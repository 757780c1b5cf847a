"""Sessions: models are prepared, planned, placed on devices, recorded once and run."""
