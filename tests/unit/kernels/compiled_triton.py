"""Compiles every Triton kernel for a GPU that need not be there.

``python -m tests.unit.kernels.compiled_triton`` prints, as JSON, what of their code could have other bits than the CPU's. A
process of its own: the interpreter and the compiler exclude each other.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource

import grace.kernels
from tests.unit.kernels.launched import EITHER, NUMBER, OPTIONS, WORD, Way, cover, read

# H100 and H200; A100, RTX 40 and L4, B200: bits may not depend on which it is. With "first" the others get some kernels.
TESTED, OTHERS = "90", ("80", "89", "100")
SOME = 16  # of so many kernels each other architecture gets one
# Kernels that do nothing but move numbers: each thread reads and writes more than one at a time.
MOVING, WIDE = r"kernels\.multi_tensor\._(?!clear)", r"(?:ld|st)\.global\S*\.v[24]\."
# What gives other bits: products fused with sums, quotients and roots not rounded to nearest, denormal numbers flushed.
FORBIDDEN = r"fma\.rn(?:\.ftz)?\.f(?:32|64)|div\.(?:full|approx)\S*|sqrt\.approx\S*|\S+\.ftz\S*"
# ptxas 12.8 adds 0 instead of a constant to pairs of 16 bits, if only one of the two sums is used: nobody adds 0 on purpose.
LOST = r"VIADD\.16x2 .*?\b0x0 ;"
DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"


def kernels() -> dict[str, Any]:
    """The kernels that can be launched, by where they are: those that take a place in a grid, and no other kernel calls."""
    by_name, called = {}, set[int]()
    for package in ("grace.kernels", "grace.random"):
        modules = [f"{package}.triton"]
        if package == "grace.kernels":
            inner = pkgutil.walk_packages(grace.kernels.__path__, f"{package}.")
            modules += [m.name for m in inner if "triton" in m.name.split(".")]
        for name in modules:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:
                continue
            place = name.removeprefix("grace.").replace(".triton", "")
            for key, value in vars(module).items():
                if isinstance(value, triton.JITFunction) and value.module == name:
                    if "tl.program_id" in value.src or "programs" in value.arg_names:
                        by_name[f"{place}.{key}"] = value
                    names = re.findall(r"\b\w+(?=\()", value.src.partition("(")[2])
                    called |= {id(value.fn.__globals__.get(name)) for name in names}
    return {name: kernel for name, kernel in by_name.items() if id(kernel) not in called}


def compiled(
    kernel: Any, way: Way, *, fused: bool = False, numbers: str = "i64", ones: tuple[str, ...] = (), even: bool = False,
    architecture: str = TESTED,
) -> Any:  # fmt: skip
    """The kernel. ``numbers``: the type of integers; with i32 tensors begin at multiples of 16 bytes, as they do in a launch.
    ones: of the integers those that are 1, and ``even``: whether all are multiples of 16, which the compiler then knows
    but of those that are not specialised.
    """
    types = {NUMBER: numbers, WORD: "i32"}
    options = {name: value for name, value in way if name in OPTIONS}
    given = {name: types.get(value, value) for name, value in way if name not in options} | dict.fromkeys(ones, 1)
    constants = {name: value for name, value in given.items() if not isinstance(value, str)}
    signature = {name: "constexpr" if name in constants else given[name] for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    kinds = ("*", "i32") if even else ("*",)
    known = [
        name for name in kernel.arg_names
        if numbers == "i32" and signature[name].startswith(kinds) and name not in opaque(kernel)
    ]  # fmt: skip
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in known}
    source = ASTSource(kernel, signature, places, attributes)
    target = GPUTarget("cuda", int(architecture), 32)
    return triton.compile(source, target=target, options={"enable_fp_fusion": fused, **options})


def assemble_what_may_be_lost() -> None:
    """From now on only kernels are assembled of which something might be lost then: of others the PTX is looked at."""
    assemble = CUDABackend.make_cubin

    def make_cubin(self: Any, ptx: str, *rest: Any) -> bytes:
        return assemble(self, ptx, *rest) if "16x2" in ptx else b"left out"

    CUDABackend.make_cubin = make_cubin


def faults(code: Any) -> list[str]:
    """Faults of a compiled kernel: what it must not have."""
    matches = re.findall(FORBIDDEN, code.asm["ptx"])
    if "16x2" in code.asm["ptx"]:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(code.asm["cubin"])
            file.flush()
            text = subprocess.run([DISASSEMBLER, "-c", file.name], capture_output=True, text=True, check=True).stdout
        matches += re.findall(LOST, text)
    return sorted(set(matches))


def opaque(kernel: Any) -> set[str]:
    """The arguments of which the compiler never knows a value or a divisor."""
    return {kernel.arg_names[key] if isinstance(key, int) else key for key in kernel.do_not_specialize or ()}


def placed(way: Way, even: bool) -> Way:
    """The way of a launch whose tensors lie at multiples of 16 bytes, or anywhere."""
    return tuple((name, even if value == EITHER else value) for name, value in way)


def ones_of(kernel: Any, way: Way) -> Iterator[tuple[str, ...]]:
    """Integers of a launch that may be 1, and so be known to the compiler: none, each, n with its block, and all."""
    integers = {name for name, value in way if value == NUMBER}
    free = integers - opaque(kernel) | {"block"}  # which is n where n is less, also where it is a constant of the way
    names = tuple(name for name in kernel.arg_names if name in free)
    return iter(dict.fromkeys([(), *((name,) for name in names), tuple(set(names) & {"n", "block"}), names]))


@triton.jit
def _one_code(codes, out, W, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds codes of a number of which the compiler knows that it is alone: of pairs of 16 bits half is used."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.float32)
    for _ in range(W):
        total += (tl.load(codes + i, i < 1, 0).to(tl.int32) - 127).to(tl.float32)
        codes += 3
    tl.store(out + i, total, i < 1)


def main() -> None:
    """Prints {kernel: what is forbidden in it}, the kernels that no test launches, and whether the rules would show a fused
    product and a lost summand.

    With the argument "first" each kernel is compiled in the first of its ways only, and few are assembled; with "ones" in
    ways that have all that any argument is, with 32-bit integers, each of which is 1 in turn; with an architecture in such
    ways for that one.
    """
    there, known, how = kernels(), read(), sys.argv[1:]
    other = next((architecture for architecture in OTHERS if how == [architecture]), None)
    if how == ["first"] or other:
        assemble_what_may_be_lost()
    wrong: dict[str, list[str]] = {}
    for number, name in enumerate(sorted(there.keys() & known.ways.keys())):
        kernel, ways = there[name], [way for way, _ in known.ways[name]]
        ways = [*(placed(way, True) for way in ways), placed(ways[0], False)]
        if how == ["ones"]:
            jobs = [(way, ones) for way in cover(ways[:-1], pairs=False) for ones in ones_of(kernel, way)]
            hits = {
                f"{hit} where {ones} are 1"
                for way, ones in jobs
                for even in ((False,) if ones else (False, True))
                for hit in faults(compiled(kernel, way, numbers="i32", ones=ones, even=even))
            }
        elif other:
            some = [placed(way, True) for way in cover((way for way, _ in known.ways[name]), pairs=False)]
            hits = {hit for way in some for hit in faults(compiled(kernel, way, architecture=other))}
        else:
            codes = [compiled(kernel, way) for way in (ways[:1] if how else ways)]
            if how and number % SOME < len(OTHERS):
                codes.append(compiled(kernel, ways[0], architecture=OTHERS[number % SOME]))
            hits = {hit for code in codes for hit in faults(code)}
            if re.match(MOVING, name) and not re.search(WIDE, compiled(kernel, ways[0], numbers="i32").asm["ptx"]):
                hits.add("one number at a time")
        if hits:
            wrong[name] = sorted(hits)
    sum_of_two = (("out", "*fp32"), ("x", "*fp32"), ("scale", "fp32"), ("n", NUMBER), ("BFLOAT16", 0), ("TILE", 1024))
    fused = compiled(there["kernels.sums._add_scaled"], sum_of_two, fused=True)
    codes = (("codes", "*u8"), ("out", "*fp32"), ("W", NUMBER), ("TILE", 1024))
    lost = faults(compiled(_one_code, codes, numbers="i32"))
    missing = sorted(there.keys() ^ known.ways.keys())
    json.dump({"wrong": wrong, "missing": missing, "fused": faults(fused), "lost": bool(lost)}, sys.stdout)


if __name__ == "__main__":
    main()
