"""Shared parts of the Triton kernels for lists and codes: fields of bit streams, searches in ascending lists, and scans."""
