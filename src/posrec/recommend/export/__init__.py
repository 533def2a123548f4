"""A run's export for serving (ONNX network, 8-bit items, index), and opening a run with it or
without."""
