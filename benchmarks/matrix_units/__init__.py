"""Products of fp32 tensors on matrix units: an experiment that runs beside vkml's own kernels."""
