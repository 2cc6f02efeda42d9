"""Exports trained models: ONNX, torch.export, safetensors, timm and its hub."""
