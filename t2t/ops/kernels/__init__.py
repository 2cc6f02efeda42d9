"""Triton kernels behind the operations; imported only where Triton is installed."""
