"""Groups of buckets, and where the cells of their sketches are, for Triton kernels."""
