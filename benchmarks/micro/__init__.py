"""What kernels, launches and loads take on one device."""
