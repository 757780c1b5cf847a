"""Other packages' interfaces over vkml, for programs that were written for these."""
