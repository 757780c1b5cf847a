"""Networks of many kinds as torch.onnx exports them, with random weights."""
