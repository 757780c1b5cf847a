"""A differential fuzzer: random and mutated models through vkml, onnxruntime and NumPy."""
