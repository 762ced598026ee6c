"""Counted wires of both sides' means; the Triton kernels of other families select and write what is listed."""
