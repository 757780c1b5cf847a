"""Machine code for the processor this runs on: an assembler, kernels written with it, their replay."""
