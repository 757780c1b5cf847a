"""ONNX's backend suite as a measure of vkml: its cases on a device, and those that are expected to fail."""
