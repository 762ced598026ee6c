// The C interface, once: GRACE_KERNEL(name, types of the arguments) for each grace_NAME_TARGET, which returns an int64.
//
// simd.h declares them, so that a definition with another signature does not compile; about.cc makes them a text, which Python
// compares with what its bindings pass; tests/kernels.h makes a table of them. So it is included several times, without a guard.
// Wires is const uint8_t* const*, the first byte of each wire.

GRACE_KERNEL(finite, const float*, int64_t, int)
GRACE_KERNEL(sum_finite, const float*, const float*, float*, int64_t, int)
GRACE_KERNEL(add_scaled, float*, const void*, int, float, int64_t, int)
GRACE_KERNEL(split_low_rank, float*, float*, const float*, const float*, const float*, int64_t, int64_t, int64_t, int)
GRACE_KERNEL(add_low_rank, float*, const float*, const float*, int64_t, int64_t, int64_t, float, int)
GRACE_KERNEL(project_rows, const float*, const float*, float*, int64_t, int64_t, int64_t, int)
GRACE_KERNEL(project_columns, const float*, const float*, float*, int64_t, int64_t, int64_t, int)
GRACE_KERNEL(orthonormalize, const float*, float*, int64_t, int64_t, int)
GRACE_KERNEL(solve_ridge, const float*, double*, int64_t, int64_t, double, int)
GRACE_KERNEL(accelerate, const float*, const float*, const float*, float, int, float*, float*, int64_t, int)
GRACE_KERNEL(forget_sent, float*, const float*, const float*, const float*, int64_t, int)
GRACE_KERNEL(words, uint32_t, uint32_t, uint32_t, int64_t, int64_t, uint32_t*, int)
GRACE_KERNEL(uniform, uint32_t, uint32_t, uint32_t, int64_t, int64_t, float*, int)
GRACE_KERNEL(subset, uint32_t, uint32_t, uint32_t, int64_t, int64_t, int64_t*, int)
GRACE_KERNEL(take_subset, float*, int64_t, int64_t, int64_t, uint32_t, uint32_t, uint32_t, float*, int, float, int)
GRACE_KERNEL(add_subset, Wires, int64_t, float*, int64_t, int64_t, uint32_t, uint32_t, uint32_t, float, int)
GRACE_KERNEL(quantize, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, int, int, int, float,
             uint32_t, uint32_t, uint32_t, int)
GRACE_KERNEL(dequantize_sum, Wires, int64_t, float*, int64_t, int64_t, int, int, float, int, int)
GRACE_KERNEL(topk, const float*, const float*, float*, int64_t, int64_t, int64_t, int, uint32_t*, float*, int)
GRACE_KERNEL(topk_wire, const float*, const float*, float*, int64_t, int64_t, int64_t, int, int, int, uint8_t*, int64_t, int)
GRACE_KERNEL(above, const float*, const float*, float*, int64_t, int, int, int64_t, uint32_t*, float*, int32_t*, int)
GRACE_KERNEL(write_pairs, const uint32_t*, const float*, int64_t, int64_t, int, int, int, uint8_t*)
GRACE_KERNEL(square_sum, const float*, const float*, int64_t, double*, int)
GRACE_KERNEL(sparse_sum, Wires, Wires, const int64_t*, const int32_t*, const int32_t*, int64_t, float*, int64_t, int, float, int,
             int)
GRACE_KERNEL(pack, const void*, int, int64_t, int64_t, int, uint8_t*, int)
GRACE_KERNEL(unpack, const uint8_t*, int64_t, int64_t, int64_t, int, void*, int, int)
GRACE_KERNEL(encode_indices, const int64_t*, int64_t, int64_t, int64_t, int, int, uint8_t*, int64_t, int)
GRACE_KERNEL(decode_indices, const uint8_t*, int64_t, int64_t, int64_t, int64_t, int, int, int64_t*, int)
GRACE_KERNEL(one_bit, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, int, int, float, int)
GRACE_KERNEL(one_bit_sum, Wires, int64_t, float*, int64_t, int64_t, int, float, int, int)
GRACE_KERNEL(majority, Wires, int64_t, float*, int64_t, float, int)
GRACE_KERNEL(trit_votes, const float*, const float*, float*, int64_t, int64_t, uint8_t*, int64_t, int)
GRACE_KERNEL(trit_votes_sum, Wires, int64_t, float*, int64_t, float, int, int, int)
GRACE_KERNEL(block_statistics, const float*, int64_t, int64_t, int64_t, int, void*, int)
GRACE_KERNEL(natural, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, int, uint32_t, uint32_t,
             uint32_t, int)
GRACE_KERNEL(natural_sum, Wires, int64_t, float*, int64_t, int64_t, int, float, int, int)
GRACE_KERNEL(codebook, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, const float*,
             const float*, const uint8_t*, int)
GRACE_KERNEL(codebook_sum, Wires, int64_t, float*, int64_t, int64_t, const float*, float, int, int)
GRACE_KERNEL(rotate, const float*, float*, int64_t, int64_t, int64_t, int, uint32_t, uint32_t, uint32_t, int)
GRACE_KERNEL(encode_rotated, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, const float*, int,
             int, int, uint32_t, uint32_t, uint32_t, int)
GRACE_KERNEL(sum_rotated, Wires, int64_t, float*, int64_t, int64_t, const float*, int, int, float, int, uint32_t, uint32_t,
             uint32_t, int)
GRACE_KERNEL(encode_floats, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, int, int, uint32_t,
             uint32_t, uint32_t, int)
GRACE_KERNEL(sum_floats, Wires, int64_t, float*, int64_t, int64_t, int, float, int, int)
GRACE_KERNEL(encode_fixed, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, int, int, float,
             float, float, int, uint32_t, uint32_t, uint32_t, int)
GRACE_KERNEL(sum_fixed, Wires, int64_t, float*, int64_t, int64_t, int, int, float, int, int)
GRACE_KERNEL(encode_affine, const float*, const float*, float*, int64_t, int64_t, int64_t, uint8_t*, int64_t, int, int, uint32_t,
             uint32_t, uint32_t, int)
GRACE_KERNEL(sum_affine, Wires, int64_t, float*, int64_t, int64_t, int, float, int, int)
GRACE_KERNEL(call_many, int, const uint64_t*, int64_t, int64_t, int64_t*)
GRACE_KERNEL(rotate_norms, const float*, const float*, float*, int64_t, int64_t, float*, uint32_t, uint32_t, uint32_t, int)
GRACE_KERNEL(encode_entries, const float*, const float*, int64_t, int64_t, const float*, int, int64_t, uint8_t*, int64_t, uint32_t,
             uint32_t, uint32_t, const float*, const float*, float*, uint32_t, uint32_t, uint32_t, int)
GRACE_KERNEL(sum_entries, const uint8_t*, int64_t, int64_t, int64_t, const float*, int, int, uint8_t*, int)
GRACE_KERNEL(decode_entries, const uint8_t*, int64_t, int64_t, int, int64_t, const float*, float*, int64_t, int64_t, double, uint32_t,
             uint32_t, uint32_t, int)
GRACE_KERNEL(encode_quantiles, const float*, const float*, float*, int64_t, int64_t, uint8_t*, int64_t, int, int, int64_t, uint32_t,
             uint32_t, uint32_t, int)
GRACE_KERNEL(sum_quantiles, Wires, int64_t, float*, int64_t, int, float, int, int)
