"""vkml in the place of onnxruntime."""
