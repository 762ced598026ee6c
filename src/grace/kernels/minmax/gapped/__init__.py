"""Wires of sketchml whose places travel as gaps; the Triton kernels of other families write and read them."""
