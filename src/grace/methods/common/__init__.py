"""Shared parts of several methods: operators, fields of wires, matrices, rotations. No module here is a method of its own.

==================  ================================================================================================
streams             zlib and zstd for any wire
counts              how many of n numbers a ratio keeps, and how much of them arrives
blocks, positions   sums of numbers that are at the same places on all ranks
tails               thresholds from statistics
count_sketch        a linear sketch of a vector; sketch_bucket: of the tensors of a bucket
cast                rounding to a 16-bit float
powers_of_two       signed powers of two in four bits, of numbers that waited: waiting_bucket
rotation            random Hadamard rotations; rotated_codes: centroids of rotated blocks
integer_table       stochastic rounding to a table of integers whose sums need no decoding; table_bucket: of a bucket's tensors
matrices            a tensor as a matrix; triples: singular triples; principal: principal components; low_rank_bucket: the
                    matrices of a bucket, of which both factors travel (factor_bucket) or one (projection_bucket, ridge_bucket)
==================  ================================================================================================
"""
