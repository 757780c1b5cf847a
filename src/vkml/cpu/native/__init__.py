"""Machine code for the processor this runs on: an assembler, kernels written with it, and threads that replay them."""
