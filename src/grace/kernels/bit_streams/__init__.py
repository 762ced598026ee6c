"""What Triton kernels of lists and codes have in common: fields of bit streams, searches in ascending lists, and scans."""
