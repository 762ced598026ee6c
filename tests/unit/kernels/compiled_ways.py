"""The Triton kernels, and the ways in which each is compiled for a GPU that need not be there: see
:mod:`tests.unit.kernels.compiled_triton`.
"""

from __future__ import annotations

from typing import Any

from grace.random.triton import NORMAL

# Of arguments by their names; pointers to others are to float32, other numbers int64.
POINTERS = {
    "wire": "*u8", "wires": "*u8", "bad": "*i1", "marks": "*i1", "top": "*i32", "words": "*i32", "index": "*i64",
    "pieces_of": "*fp64", "values": "*i64", "state": "*i32", "slabs": "*i16", "counts": "*i32", "both": "*i32",
    "begins": "*i32", "total": "*i32", "fields": "*u8", "table": "*i64", "programs": "*i32", "heads": "*i64", "flags": "*i1",
    "kept": "*i64", "before": "*i32", "rooms": "*i64", "lists": "*i64", "spans": "*i64", "sides": "*i64",
    "finer": "*i32", "fronts": "*i32", "signs": "*i32", "places": "*i64",
}  # fmt: skip
FLOATS = {"weight", "shrink", "tau", "momentum", "scale", "left", "share", "most", "largest"}
NUMBERS = {
    "n", "block", "nb", "w", "width", "W", "stride", "row_stride", "pieces", "count", "turns", "blocks", "m", "l", "r", "k",
    "first", "half", "tiles", "least", "apart", "steps", "b", "unit", "plane", "number", "low", "low_bytes", "size", "turn",
}  # fmt: skip
WORDS = {"key0", "key1", "step", "k0", "k1", "k2", "k3", "k4", "k5"}
# What a kernel for one tensor and for many is launched with, for each of them (``many.jobs``).
_NO_TABLE = dict.fromkeys(("table", "programs", "heads"))
_FROM_TABLE = dict.fromkeys(("e", "rest", "n", "w", "key0", "key1"))
ONE = {**_NO_TABLE, "MANY": 0, "EVEN": 0, "HAS_MEMORY": 1, "HAS_REST": 1}
MANY = {**_FROM_TABLE, "MANY": 1, "EVEN": 1, "HAS_MEMORY": 1, "HAS_REST": 1}
BARE = {**ONE, "e": None, "rest": None, "HAS_MEMORY": 0, "HAS_REST": 0}
WARP = {"num_warps": 1, "maxnreg": 128}
UNKEYED = {"KEYED": 0, "HAS_SECOND": 1}
TURN = {**_NO_TABLE, "target": None, "keys": None, "MANY": 0, "EVEN": 0, "HAS_MEMORY": 1}
TURNED = {**dict.fromkeys(("e", "out", "m", "n", "nb", "key0", "key1")), "MANY": 1, "EVEN": 1, "HAS_MEMORY": 1}
SUM = {**_NO_TABLE, "MANY": 0, "EVEN": 0, "ADD": 1}
ALL = {"n": None, "row_stride": 0, "MANY": 1, "EVEN": 1, "ADD": 0}
LOOK = {**dict.fromkeys(("table", "programs", "spans")), "MANY": 0, "EVEN": 0, "HELD": 0}
LOOK_MANY = {**dict.fromkeys(("n", "tiles", "k")), "MANY": 1, "EVEN": 1, "HELD": 1}
NO_STATE = {**LOOK_MANY, "state": None}
SUMS_MANY = {**LOOK_MANY, "e": None, "rest": None}
NOTED = {"COLUMNS": 10, "GROUP": 8, "CHUNK": 128, "ROOM": 512, "TILE": 4096}
LIST = {**dict.fromkeys(("table", "programs", "lists")), "MANY": 0, "EACH": 0, "EVEN": 0}
LIST_MANY = {
    **dict.fromkeys(("w", "row_stride", "n", "k", "number", "low", "low_bytes", "size")),
    "MANY": 1,
    "EACH": 0,
    "EVEN": 1,
}
GAPS = {
    "sizes": "*i64", "gaps": "*i64", "ends": "*i64", "widths": "*i64", "sums": "*i32", "message": "*u8", "K": "i64",
}  # fmt: skip
HASHED = {
    "shapes": "*i64", "cells": "*i32", "units": "*fp64", "ends": "*i64", "order": "*i64", "R": "i64", "row": "i64",
}  # fmt: skip
QUANTILES = {
    "shapes": "*i64", "cells": "*i32", "ends": "*i64", "order": "*i64", "keys": "*i64", "rows": "*i64", "q": "i64",
    "zs": "*i32",
}  # fmt: skip
MINMAX = {
    "shapes": "*i64", "zs": "*i32", "cells": "*i32", "sides": "*i32", "groups": "*i64", "least": "*i32", "share": "*fp64",
    "coded": "*i64", "where": "*i64", "widths": "*i64", "ends": "*i64", "keys": "*i64", "drawn": "*i64", "message": "*u8",
    "values": "*fp32", "q": "i64", "R": "i64", "behind": "i64",
}  # fmt: skip
# Groups, bits of their number, and a power of two above.
FEW, ALL_BUCKETS = {"G": 8, "GROUP_BITS": 3, "SIZE": 32}, {"G": 256, "GROUP_BITS": 8, "SIZE": 256}
SAMPLES = {
    "goals": "*fp64", "spreads": "*fp64", "after": "*fp64", "units": "*fp64", "following": "*fp64", "sums": "*fp64",
    "before": "*fp64", "widths": "*i64", "where": "*i64", "sizes": "*i64", "message": "*u8", "signs": "*u8", "rows": "i64",
}  # fmt: skip
DRAWN = {**SAMPLES, "units": "*fp32"}
QUARTIC = {"digits": "*u8", "lasts": "*i32", "where": "*i64", "widths": "*i64", "message": "*u8"}
TAGGED = {"tops": "*fp32", "where": "*i64", "widths": "*i64", "message": "*u8"}
AGREED = {"words": "*i64", "legal": "*i1", "kept": "*i1", "headers": "*i32", "number": "i32"}
LIST_EACH = {**LIST_MANY, "EACH": 1}
# What travels: values, or codes of one of three kinds, in so many bits.
VALUES = {"KIND": 0, "MOST": 0, "BITS": 0, "fronts": None}
QUANTA = {"KIND": 1, "MOST": 65536, "BITS": 17, "sent": "*i32"}
SIGNS = {"KIND": 1, "MOST": 1, "BITS": 1, "sent": "*i32"}
SIDES = {"KIND": 3, "MOST": 1, "BITS": 1, "sent": "*i32", "fronts": "*i64"}
POWERS = {"KIND": 2, "MOST": 7, "BITS": 4, "sent": "*i32"}
FACTOR = {**_NO_TABLE, "sides": None, "MANY": 0, "EVEN": 0}
FACTORS = {**dict.fromkeys(("x", "m", "l", "r")), "MANY": 1, "EVEN": 1}
# kernel -> what differs from the rules above, and one dictionary of constants for each way to compile it, or of types
KERNELS: dict[str, tuple[dict[str, str], list[dict[str, Any]]]] = {
    "kernels.levels._quantize": ({}, [
        {"S": s, "BITS": bits, **how, "block": 256 if s == 7 else 1024, "FINDS": s in (7, 127), "WHOLE": per == 8,
         "CLIP": s == 1, "G": 128, "PER": per}
        for s, bits, how, per in ((7, 4, MANY, 8), (1, 0, ONE, 5), (127, 8, ONE, 8), (1, 0, MANY, 5), (9, 5, MANY, 8),
                                  (32767, 16, MANY, 8))
    ]),
    "kernels.levels._dequantize_sum": ({}, [
        {"S": s, "BITS": bits, **how, "block": 256 if s == 7 else 1024, "TILE": 1024}
        for s, bits, how in ((7, 4, ALL), (1, 0, SUM), (9, 5, ALL), (200, 9, ALL), (9999, 15, SUM), (127, 8, SUM), (3, 3, SUM))
    ]),
    "kernels.many._poison": ({}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.many._agree": (AGREED, [
        {"kept": None, "KEPT": 0, "CLEAR": 0, "RANKS": 1, "EVEN": 1, "TILE": 1024},
        {"KEPT": 1, "CLEAR": 0, "RANKS": 64, "EVEN": 0, "TILE": 1024},
        {"kept": None, "KEPT": 0, "CLEAR": 1, "RANKS": 8, "EVEN": 1, "TILE": 1024},
    ]),
    "kernels.many._settle": ({}, [{"SMALL": 5.3e36, "DROPS": drops, "EVEN": 1, "TILE": 1024} for drops in (1, 0)]),
    "kernels.staging._pad": ({}, [{"HAS_MEMORY": 1, "EVEN": 1, "TILE": 1024}]),
    "kernels.staging._fetch": ({}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.staging._sum": ({}, [{"HAS_MEMORY": memory, "EVEN": 1, "TILE": 1024} for memory in (1, 0)]),
    "kernels.staging._weigh": ({"weights": "*fp32"}, [{"ONCE": once, "EVEN": 1, "TILE": 1024} for once in (1, 0)]),
    "kernels.staging._scale": ({}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.staging._clear": ({}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.staging._look": ({}, [{"LEAST": least, "EVEN": 1, "TILE": 1024} for least in (1, 0x7F800000)]),
    "kernels.staging._narrow": ({}, [{"HAS_REST": rest, "EVEN": 1, "TILE": 1024} for rest in (1, 0)]),
    "kernels.staging._round": ({"rounded": "*i64"}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.staging._widen": ({"rounded": "*i64"}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.signs._encode": ({"low": "*fp32"}, [
        {"RULE": rule, "ZEROS": 2 + rule % 2, **how, "block": block, "G": 128,
         "PER": 5 if rule == 3 else 8}
        for how, block in ((MANY, 4096), (ONE, 256)) for rule in range(4)
    ]),
    "kernels.signs._sum": ({}, [
        {"RULE": rule, "MAJORITY": rule != 1, **how, "block": block, "TILE": 1024}
        for how, block in ((ALL, 4096), (SUM, 256)) for rule in range(4)
    ]),
    "kernels.codebook._encode": ({}, [{**how, "block": 2048, "FINDS": 1, "TILE": 2048} for how in (MANY, ONE, BARE)]),
    "kernels.codebook._sum": ({}, [{**how, "block": 2048, "TILE": 1024} for how in (ALL, SUM)]),
    "kernels.powers._encode": ({"tops": "*i32"}, [
        {"BITS": bits, "OCTAVES": octaves, **how, "block": 1 << 62, "FINDS": 0, "WHOLE": 1, "G": 128}
        for bits, octaves, how in ((4, 7, MANY), (8, 126, ONE), (9, 254, MANY))
    ]),
    "kernels.powers._sum": ({}, [
        {"BITS": bits, "OCTAVES": octaves, **how, "block": 1 << 62, "TILE": 1024}
        for how in (ALL, SUM) for bits, octaves in ((8, 126), (9, 254))
    ]),
    "kernels.finite._look": ({}, [{"EXPONENT": 0x7F800000, "TILE": 4096}]),
    "kernels.finite._add": ({}, [{"HAS_MEMORY": 1, "TILE": 1024}]),
    "kernels.momentum._accelerate": ({}, [{"NESTEROV": nesterov, "TILE": 1024} for nesterov in (0, 1)]),
    "kernels.momentum._accelerate_many": ({"rooms": "*i64"}, [
        {"NESTEROV": nesterov, "EVEN": 1, "TILE": 1024} for nesterov in (0, 1)
    ]),
    "kernels.momentum._forget_many": ({"masked": "*i32"}, [
        {"NESTEROV": nesterov, "EVEN": 1, "TILE": 1024} for nesterov in (1, 0)
    ]),
    "kernels.momentum._forget": ({}, [{"HAS_X": 1, "TILE": 1024}]),
    "kernels.sums._add_scaled": ({}, [{"BFLOAT16": 0, "TILE": 1024}]),
    "kernels.subsets._take": ({}, [{"HAS_LEFT": 1, "TILE": 1024}]),
    "kernels.subsets._add": ({}, [{"TILE": 1024}]),
    "kernels.subsets._draw": ({}, [
        {"LISTED": listed, "CYCLIC": cyclic, "SORTED": 4096, "RANKED": 32, "CHUNK": 256, "TILE": 128}
        for listed, cyclic in ((0, 1), (1, 0), (0, 0))
    ]),
    "kernels.subsets._count": ({}, [{"CHUNK": 1024}]),
    "kernels.subsets._take_drawn": ({"left": "*fp32", "wire": "*fp32"}, [
        {"EVEN": 1, "HAS_MEMORY": 1, "HAS_REST": rest, "SENDS": sends, "LISTED": listed, "TILE": 1024}
        for listed, sends, rest in ((0, 1, 1), (1, 1, 1), (1, 1, 0), (1, 0, 1))
    ]),
    "kernels.subsets._put_drawn": ({"left": "*fp32", "wire": "*fp32"}, [
        {"LOOKS": looks, "EVEN": 1, "LISTED": listed, "TILE": 1024} for listed in (0, 1) for looks in (0, 1)
    ]),
    "kernels.casts._encode": ({}, [
        {"wire": kind, "HAS_MEMORY": both, "HAS_REST": both, "EVEN": 1, "TILE": 1024}
        for kind in ("*fp32", "*i16", "*fp16") for both in (1, 0)
    ]),
    "kernels.casts._sum": ({}, [{"wires": kind, "EVEN": 1, "TILE": 1024} for kind in ("*fp32", "*i16", "*fp16")]),
    "kernels.factors.draw_kernel": ({}, [{**NORMAL, "EVEN": 1, "GROUPS": 256}]),
    "kernels.low_rank.rows_kernel": ({}, [{**how, "RANKS": 4, "ROWS": 8} for how in (FACTORS, FACTOR)]),
    "kernels.low_rank.columns_kernel": ({}, [
        {**how, "RANKS": 4, "COLUMNS": 32, "TOGETHER": 32, "num_warps": 1} for how in (FACTORS, FACTOR)
    ]),
    "kernels.low_rank.join_kernel": ({}, [
        {**how, "ALONG": along, "TILE": 1024} for along, how in ((1, FACTORS), (0, FACTOR))
    ]),
    "kernels.low_rank.split_kernel": ({}, [
        {**how, **out, "HAS_X": 1, "ROWS": 16, "COLUMNS": 64} for how, out in ((FACTORS, {"out": None}), (FACTOR, {}))
    ]),
    "kernels.low_rank.bases._orthonormalize": ({"wide": "*fp64", "work": "*fp64"}, [
        {**how, "TINY": 2.0**-126, "LOG": 10} for how in ({"m": None, "r": None, "MANY": 1}, {"sides": None, "MANY": 0})
    ]),
    "kernels.low_rank.bases.unit_rows_kernel": ({"work": "*fp64"}, [{"TINY": 2.0**-126, "EVEN": 1, "LOG": 10}]),
    "kernels.low_rank.bases.fit_kernel": ({}, [{"HALF": 1.7e38, "POISON": poison, "LOG": 10} for poison in (1, 0)]),
    "kernels.low_rank.bases.succeed_kernel": ({}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.low_rank.ridge.solve_kernel": ({"x": "*fp64", "gram": "*fp64", "work": "*fp64", "narrow": "*fp32"}, [
        {**how, "LAM": 1e-3, "LOG": 10}
        for how in ({"m": None, "r": None, "BOUND": 1, "MANY": 1}, {"sides": None, "narrow": None, "BOUND": 0, "MANY": 0})
    ]),
    "kernels.low_rank.ridge.unit_columns_kernel": ({"drawn": "*i64"}, [
        {"SHARE": 1e-4, "FRESH": 1, "TINY": 2.0**-126, "EVEN": 1, "LOG": 10},
        {"drawn": None, "SHARE": 0.0, "FRESH": 0, "TINY": 2.0**-126, "EVEN": 1, "LOG": 10},
    ]),
    "kernels.low_rank.add_kernel": ({}, [
        {**how, **out, "ROWS": 16, "COLUMNS": 64} for how, out in ((FACTORS, {"out": None}), (FACTOR, {}))
    ]),
    "kernels.low_rank.bases.turn_kernel": ({"flat": "*fp32"}, [
        {"SIDE": side, "GATHER": side, "EVEN": 1, "TILE": 1024} for side in (0, 1)
    ]),
    "kernels.packing._pack": ({}, [{"BITS": bits, "TILE": 1024} for bits in (1, 4, 11, 32)]),
    "kernels.packing._unpack": ({"out": "*i64"}, [{"BITS": bits, "TILE": 1024} for bits in (1, 11, 32)]),
    "kernels.packing._pack_trits": ({"values": "*u8"}, [{"TILE": 1024}]),
    "kernels.packing._unpack_trits": ({"out": "*u8"}, [{"TILE": 1024}]),
    "kernels.selection.tiles._estimate": ({}, [
        {**how, "HAS_MEMORY": 1, "SIDES": sides, "COLUMNS": 10, "BITS": 16, "SAMPLE": 8192}
        for sides, how in (
            (1, {"n": None, "e": None, "k": None, "MANY": 1, "EVEN": 1}),
            (1, {"table": None, "kept": None, "MANY": 0, "EVEN": 0}),
            (2, {"n": None, "e": None, "k": None, "MANY": 1, "EVEN": 1}),
        )
    ]),
    "kernels.selection.tiles._measure": ({}, [
        {"SIGNS": 0, "signs": None, "SIDES": 1, **how, "HAS_MEMORY": 1, "COPY": 1, "NOTE": note, "TOPK": topk, "COLUMNS": 10,
         "ROOM": 512, "TILE": 4096}
        for note, topk, how in (
            (1, 1, {**SUMS_MANY, "EACH": 0}), (1, 0, {**LOOK, "state": None, "EACH": 0}),
            (1, 0, {**SUMS_MANY, "state": None, "EACH": 1}), (0, 0, {**LOOK, "state": None, "EACH": 0}),
            (1, 1, {**SUMS_MANY, "EACH": 0, "SIDES": 2}), (0, 0, {**SUMS_MANY, "EACH": 0, "SIGNS": 1, "signs": "*i32"}),
        )
    ]),
    "kernels.counted._plan": ({"total": "*i32", "widths": "*i64"}, [
        {"VALUE": value, "CODE": code, **said} for value, code, said in ((4, 3, VALUES), (2, 2, VALUES), (4, 3, QUANTA),
                                                                         (4, 3, SIDES))
    ]),
    "kernels.counted._sample": ({"first": "*i64"}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.counted._levels": ({"bounds": "*i32", "totals": "*i32", "rows": "i64"}, [
        {"LEVELS": 11, "EVEN": 1, "TILE": 4096}
    ]),
    "kernels.counted._open": ({"where": "*i64"}, [
        {"VALUE": value, "CODE": code, **said}
        for value, code, said in ((4, 3, VALUES), (2, 0, VALUES), (4, 3, QUANTA), (4, 3, POWERS), (4, 3, SIDES))
    ]),
    "kernels.sampling.search._look": (SAMPLES, [
        {"START": start, "FIRST": first, "SQUARES": squares, "EVEN": 1, "ROWS": 4}
        for start, first, squares in ((1, 0, 0), (0, 1, 1), (0, 0, 1), (0, 0, 0))
    ]),
    "kernels.sampling.search._end": (SAMPLES | {"out": "*fp32"}, [
        {"LEAST": 2.0**-126, "MOST": 3.0e38, "FIRST": first, "SQUARES": squares, "EVEN": 1, "ROWS": 16}
        for first, squares in ((0, 1), (1, 0))
    ]),
    "kernels.sampling._weigh": (DRAWN, [{"EVEN": 1, "ROWS": 4}]),
    "kernels.sampling._plan": (DRAWN, [{"CODE": code} for code in (3, 0)]),
    "kernels.sampling._expect": ({**DRAWN, "out": "*i64"}, [{}]),
    "kernels.sampling._emit": (DRAWN, [{"KEEP_REST": keep, "EVEN": 1, "TILE": 1024} for keep in (1, 0)]),
    "kernels.sampling._write": (DRAWN, [{"TILE": 1024}]),
    "kernels.sampling._open": (DRAWN, [{"CODE": 3}]),
    "kernels.selection._pick": ({}, [{"BINS": 1024, "COLUMNS": 10}]),
    "kernels.selection._refine": ({}, [
        {**how, "SIDES": sides, "ROUND": r, "BINS": bins, "FINER": finer, **NOTED}
        for sides, r, bins, finer, how in ((1, 0, 0, 2048, LOOK_MANY), (1, 1, 2048, 1024, LOOK), (1, 2, 1024, 1024, LOOK_MANY),
                                           (2, 0, 0, 2048, LOOK_MANY), (2, 2, 1024, 1024, LOOK_MANY))
    ]),
    "kernels.selection._tally": ({}, [
        {**how, "SIDES": sides, "BINS": 1024, **NOTED} for sides, how in ((1, LOOK_MANY), (1, LOOK), (2, LOOK_MANY))
    ]),
    "kernels.selection.sides._list": ({}, [{**LOOK_MANY, "SIDES": sides, **NOTED} for sides in (2, 1)]),
    "kernels.counted.sided._encode": ({}, [{"KEEP_REST": rest, "EVEN": 1, "TILE": 1024, **SIDES} for rest in (1, 0)]),
    "kernels.selection._emit": ({}, [
        {**how, "TOPK": topk, "KEEP_REST": 1, "NARROW": 1, "LISTED": listed, **NOTED, **VALUES}
        for topk, listed, how in (
            (1, 0, LOOK_MANY), (0, 0, {**LOOK, "kept": None, "state": None}), (0, 1, NO_STATE), (1, 1, LOOK_MANY),
        )
    ] + [
        {**NO_STATE, "TOPK": 0, "KEEP_REST": 1, "NARROW": 0, "LISTED": 1, **NOTED, **said}
        for said in (QUANTA, POWERS)
    ]),
    "kernels.index_lists._write": ({}, [{**how, "TILE": 1024} for how in (LIST_MANY, LIST)]),
    "kernels.index_lists._count": ({}, [{**how, "TILE": 2048} for how in (LIST_EACH, LIST)]),
    "kernels.index_lists._read": ({}, [{**how, "TILE": 2048} for how in (LIST_EACH, LIST_MANY, LIST)]),
    "kernels.gap_lists._measure": ({}, [{"DELTA": delta, "TILE": 1024} for delta in (0, 1)]),
    "kernels.gap_lists._lay": (GAPS, [{"DELTA": 0, "widths": None, "TILE": 1024}, {"DELTA": 1, "TILE": 1024}]),
    "kernels.gap_lists._write": (GAPS, [{"DELTA": 0, "widths": None, "TILE": 1024}, {"DELTA": 1, "TILE": 1024}]),
    "kernels.gap_lists._count": (GAPS, [{"DELTA": delta, "TILE": 1024} for delta in (0, 1)]),
    "kernels.gap_lists._place": (GAPS, [
        {"DELTA": 0, "sums": None, "TILE": 1024}, {"DELTA": 1, "TILE": 1024}
    ]),
    "kernels.gap_lists._finish": (GAPS, [{"DELTA": delta, "TILE": 1024} for delta in (0, 1)]),
    "kernels.quartic._quantize": (QUARTIC, [
        {"PLACED": 0, "HAS_MEMORY": 1, "HAS_REST": 1, "EVEN": 1, "TILE": 1024},
        {"PLACED": 1, "lasts": None, "HAS_MEMORY": 0, "HAS_REST": 0, "EVEN": 1, "TILE": 1024},
    ]),
    "kernels.quartic._count": (QUARTIC, [{"TILE": 1024}]),
    "kernels.quartic._write": (QUARTIC, [{"TILE": 1024}]),
    "kernels.quartic._measure": (QUARTIC, [{"TILE": 1024}]),
    "kernels.quartic._lengthen": (QUARTIC, [{"TILE": 1024}]),
    "kernels.quartic._sum": (QUARTIC, [
        {"PLACED": 0, "EVEN": 1, "TILE": 1024}, {"PLACED": 1, "where": None, "digits": None, "EVEN": 1, "TILE": 1024}
    ]),
    "kernels.tagged._tally": (TAGGED, [
        {"P": p, "RELATIVE": p > 6, "HAS_MEMORY": 1, "EVEN": 1, "TILE": 1024} for p in (10, 6)
    ]),
    "kernels.tagged._write": (TAGGED, [
        {"P": p, "RELATIVE": p > 6, "HAS_MEMORY": 1, "HAS_REST": 1, "EVEN": 1, "TILE": 1024} for p in (10, 6)
    ]),
    "kernels.tagged._count": (TAGGED, [{"RELATIVE": relative, "TILE": 1024} for relative in (1, 0)]),
    "kernels.tagged._sum": (TAGGED, [{"P": p, "RELATIVE": p > 6, "EVEN": 1, "TILE": 1024} for p in (10, 6)]),
    "kernels.index_lists._check": ({}, [{"TILE": 1024}]),
    "kernels.sparse._write": ({}, [
        {**how, "NARROW": narrow, **said, "TILE": 1024}
        for how, narrow, said in ((LIST_MANY, 0, VALUES), (LIST, 1, VALUES), (LIST_MANY, 0, SIGNS), (LIST_MANY, 0, QUANTA),
                                  (LIST_MANY, 0, POWERS), (LIST_MANY, 0, SIDES))
    ]),
    "kernels.sparse._sum_lists": ({}, [
        {**how, "ADD": add, "NARROW": add, "PAIRS": 0, **said, "COUNT": 7, "STEP": 1, "UNIT": unit, "LISTS": 8,
         "OWNED": 8192, "TILE": 1024}
        for how, add, said, unit in (
            (LIST_EACH, 0, VALUES, 0), (LIST_MANY, 0, {**VALUES, "BITS": 3}, 3), (LIST, 1, VALUES, 0),
            (LIST_MANY, 0, VALUES, 1), (LIST_EACH, 0, SIGNS, 0), (LIST_EACH, 0, QUANTA, 0), (LIST_EACH, 0, POWERS, 0),
            (LIST_EACH, 0, SIDES, 0),
            (LIST_EACH, 0, {**SIGNS, "PAIRS": 1}, 0),
        )
    ]),
    "kernels.sparse._clear": ({}, [{"ROWS": 1, "TILE": 1024}]),
    "kernels.sparse._put": ({}, [{"EVEN": 1, "TILE": 1024}]),
    "kernels.hashing._assign": (HASHED, [{"TILE": 1024}]),
    "kernels.hashing._add": (HASHED, [{"HELD": held, "EVEN": 1, "CELLS": 128} for held in (1, 0)]),
    "kernels.hashing._read": (HASHED, [
        {"LARGEST": 3.4028234663852886e38, "EVEN": 1, "ROWS": rows, "TILE": 2048 // rows} for rows in (8, 1, 64)
    ]),
    "kernels.quantiles._look": (QUANTILES, [
        {"HAS_MEMORY": has, "HAS_REST": has, "EVEN": 1, "TILE": 1024} for has in (1, 0)
    ]),
    "kernels.quantiles._sample": (QUANTILES, [{"HELD": held, "EVEN": 1, "TILE": 1024} for held in (1, 0)]),
    "kernels.quantiles._cut": (QUANTILES, [
        {"ZERO_EDGE": size > 2, "TELLS": size == 16, "SIZE": size} for size in (16, 2, 256)
    ]),
    "kernels.quantiles._encode": (QUANTILES, [
        {"BITS": bits, "HELD": held, "EVEN": 1, "G": 128} for bits, held in ((4, 1), (4, 0), (3, 1), (8, 1))
    ]),
    "kernels.quantiles._add": (QUANTILES, [
        {"HELD": held, "LISTED": listed, "EVEN": 1, "LANES": 1024}
        for held, listed in ((1, 0), (0, 0), (1, 1))
    ]),
    "kernels.minmax._look": (MINMAX, [{"TILE": 1024}]),
    "kernels.minmax._encode": (MINMAX, [{"BITS": bits, "TILE": 1024} for bits in (4, 1, 8)]),
    "kernels.minmax._lay": (MINMAX, [{**how, "CODE": code} for how, code in ((FEW, 3), (ALL_BUCKETS, 2), (FEW, 4))]),
    **{
        f"kernels.minmax.{name}": (MINMAX, [
            {**how, "CODE": code, "EVEN": 1, "TILE": 1024} for how, code in ((FEW, 3), (ALL_BUCKETS, 4))
        ])
        for name in ("_hash", "_drop", "_write", "read._tally", "read._bound", "read._decode")
    },
    "kernels.minmax.read._open": (MINMAX, [{**how, "CODE": code} for how, code in ((FEW, 3), (ALL_BUCKETS, 0), (FEW, 4))]),
    "kernels.quantiles._drop": (QUANTILES, [{"LARGEST": 3.4028234663852886e38, "EVEN": 1, "TILE": 1024}]),
    "kernels.quantiles._sum": (QUANTILES, [
        {"BITS": bits, **how, "block": 1 << 62, "TILE": 1024} for how in (ALL, SUM) for bits in (4, 8)
    ]),
    "kernels.sparse._take": ({}, [{"HELD": held, "CLEAR": held, "EVEN": 1, "TILE": 1024} for held in (0, 1)]),
    "kernels.sparse._add_part": ({}, [{"NARROW": 1, "LISTED": listed, "TILE": 1024} for listed in (0, 1)]),
    "kernels.rotation.turns._rotate": ({"p": "*fp32", "m": "*fp32", "target": "*i64", "keys": "*i64"}, [
        {"LOG": log, "FIRST": first, "LAST": last, "SIGNS": signs, "END": end, **UNKEYED, **how, "TILE": tile}
        for log, first, last, signs, end, tile, how in (
            (12, 1, 1, 2, 3, 4096, TURN), (4, 1, 1, 1, 0, 1024, {**TURN, **WARP}), (10, 1, 1, 2, 1, 1024, {**TURNED, **WARP}),
            (14, 1, 0, 1, 0, 4096, TURN), (14, 0, 1, 2, 2, 4096, TURN), (10, 1, 1, 1, 0, 1024, {**TURNED, **WARP}),
            (14, 0, 1, 2, 1, 4096, TURNED), (14, 0, 1, 2, 3, 4096, {**TURN, "keys": "*u8", "KEYED": 1}),
        )
    ]),
    "kernels.rotation._sums": ({"out": "*fp64"}, [
        {"BITS": bits, "SQUARES": squares, "LONG": squares, **how, "ROWS": 8}
        for bits, squares, how in ((1, 0, MANY), (4, 1, ONE), (4, 0, MANY))
    ]),
    "kernels.rotation._write": ({"keys": "*i64"}, [
        {"BITS": bits, "SAY": 1, "LOG": log, "KEYED": keyed, **how, "G": 128}
        for bits, log, keyed, how in ((1, 10, 1, MANY), (3, 10, 0, MANY), (1, 12, 0, ONE), (4, 4, 1, ONE))
    ]),
    "kernels.rotation._sum": ({}, [
        {"KEY": key, "BITS": bits, "LOG": log, **how, "TILE": 1024}
        for bits, log, key, how in ((1, 10, 0, ALL), (4, 10, 0, ALL), (3, 4, 8, SUM))
    ]),
    "kernels.rotation._sum_back": ({}, [
        {"BITS": bits, "LOG": log, **how, "TILE": max(1024, 1 << log)}
        for bits, log, how in ((1, 10, ALL), (4, 12, ALL), (3, 4, SUM))
    ]),
    "kernels.tables._encode": ({}, [{"BITS": bits, "LOG": 10, "SAY": bits - 3, "EVEN": 1, "G": 128} for bits in (4, 3)]),
    "kernels.tables._sum": ({"begins": "*i64"}, [{"BITS": 4, "SUM_BITS": bits, "TILE": 1024} for bits in (8, 11, 3)]),
    "kernels.tables._decode": ({"begins": "*i64", "most": "i64"}, [
        {"SUM_BITS": bits, "LOG": 10, "EVEN": 1, "TILE": 1024} for bits in (8, 11)
    ]),
    "kernels.floats._encode": ({}, [
        {"FRACTION": m, "LEAST": least, "LARGEST": most, "MOST": 3.4e38, "RANDOM": m - 2, **how, "block": 512,
         "FINDS": 1, "WHOLE": 1, "TILE": 1024}
        for m, least, most, how in ((3, -6, 448.0, MANY), (2, -14, 57344.0, ONE), (3, -6, 448.0, ONE))
    ]),
    "kernels.floats._sum": ({}, [
        {"FRACTION": m, "LEAST": least, **how, "block": 512, "TILE": 1024} for m, least, how in ((3, -6, ALL), (2, -14, SUM))
    ]),
    "kernels.statistics._largest": ({}, [{"EVEN": 1, "HAS_MEMORY": 1, "ROWS": 4, "CHUNK": 256}]),
    "kernels.statistics._piece_sums": ({"out": "*fp64"}, [
        {"KIND": kind, "EVEN": 1, "HAS_MEMORY": 1, "ROWS": 2} for kind in range(3)
    ]),
    "kernels.tails._tail_sums": ({"out": "*fp64", "bounds": "*fp32"}, [
        {"EVEN": 1, "HAS_MEMORY": memory, "ROWS": 16} for memory in (1, 0)
    ]),
    "kernels.fixed._encode": ({}, [
        {"BITS": bits, "LEAST": least, "RANDOM": bits == 4, **how, "block": 1024, "FINDS": 1, "WHOLE": 1, "G": 128}
        for bits, least, how in ((4, 7, MANY), (5, 16, ONE))
    ]),
    "kernels.fixed._sum": ({}, [
        {"BITS": bits, "SYMMETRIC": 1, **how, "block": 1024, "TILE": 1024} for bits, how in ((4, ALL), (5, SUM))
    ]),
    "kernels.affine._encode": ({}, [
        {"BITS": bits, "RANDOM": bits == 4, **how, "block": 1024, "WHOLE": 1, "G": 128} for bits, how in ((4, MANY), (8, ONE))
    ]),
    "kernels.affine._sum": ({}, [{"BITS": bits, **how, "block": 1024, "TILE": 1024} for bits, how in ((4, ALL), (8, SUM))]),
    "kernels.bit_streams.scan_kernel": ({}, [{"MANY": 1, "CHUNK": 4096}, {"spans": None, "MANY": 0, "CHUNK": 1024}]),
    "kernels.block_max_kernel": ({}, [{"HAS_MEMORY": 1, "ROWS": 4, "CHUNK": 256}]),
    "kernels.piece_sum_kernel": ({"out": "*fp64"}, [{"KIND": kind, "HAS_MEMORY": 1, "ROWS": 2} for kind in range(3)]),
    "kernels.join_pieces_kernel": ({"out": "*fp64"}, [{"ROWS": 16}]),
    "random._words": ({"out": "*i32"}, [{"TILE": 1024}]),
    "random._uniform": ({}, [{"TILE": 1024}]),
    "random._walk": ({"out": "*i64"}, [{"TILE": 128}]),
}  # fmt: skip
# Those that kernels ask where they are.
HELPERS = (
    "kernels.many.tile_of", "kernels.many.encoder_at", "kernels.many.adder_at",
    "kernels.many.blocks_at",
    "kernels.selection.tiles.row_at", "kernels.selection.tiles.row_of", "kernels.selection._search_of",
    "kernels.selection.tiles.tiles_at",
    "kernels.sparse._listed", "kernels.index_lists._list_at", "kernels.gap_lists._code_at",
    "kernels.quartic._codes", "kernels.quartic._lengths",
    "kernels.tagged._tags", "kernels.minmax._chosen", "kernels.minmax.read._groups_at",
    "kernels.rotation.turns._turner_at", "kernels.low_rank.matrix_at",
)  # fmt: skip
# Those that also read gradients of other types, as they are: kernel -> its arguments that have them.
NARROW = {
    "kernels.levels._quantize": "x",
    "kernels.subsets._take_drawn": "x",
    "kernels.casts._encode": ["like"],
    "kernels.finite._add": "x",
    "kernels.rotation.turns._rotate": "xp",
    "kernels.selection.tiles._measure": "x",
    "kernels.selection.tiles._estimate": "x",
    "kernels.statistics._largest": ["like"],
    "kernels.many._poison": ["like"],
    "kernels.many._agree": ["like"],
    "kernels.hashing._add": ["like"],
    **{f"kernels.quantiles.{name}": ["like"] for name in ("_look", "_sample", "_encode", "_add")},
    "kernels.quartic._quantize": ["like"],
    "kernels.tagged._tally": ["like"],
    "kernels.tagged._write": ["like"],
    "kernels.counted._sample": ["like"],
    "kernels.counted._levels": ["like"],
    "kernels.sampling._weigh": ["like"],
    "kernels.sampling._emit": ["like"],
    "kernels.sampling.search._look": ["like"],
    "kernels.sampling.search._end": ["like"],
    "kernels.tails._tail_sums": ["like"],
    "kernels.momentum._accelerate_many": ["like"],
    "kernels.momentum._forget_many": ["like"],
    "kernels.staging._pad": ["like"],
    "kernels.staging._sum": ["like"],
    "kernels.staging._scale": ["like"],
    "kernels.staging._look": ["like"],
    "kernels.staging._narrow": ["like"],
    "kernels.staging._weigh": ["like"],
    "kernels.staging._round": ["like"],
    "kernels.staging._widen": ["like"],
}
