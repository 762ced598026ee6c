"""The tables of the wire format: golden wires are taken apart by them, and the sizes that are declared follow from them."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import grace
from grace.contract.compressor import Compressor
from grace.kernels.minmax_sketch.groups import BucketGroups
from tests.docs.pages import ROOT
from tests.golden.golden import COMPRESSORS, CORES, GOLDEN

PAGE = ROOT / "docs/concepts/wire-format.md"
WIDTHS = {"int8": "b", "uint8": "B", "int32": "i", "uint32": "I", "float32": "f", "float16": "e", "bfloat16": "H"}
FIELD = re.compile(r"(\w+): (\w+)(?:\((.*?)\))?(?:\[(.*)\])?$")
FUNCTIONS = {"ceil": math.ceil, "log2": lambda x: max(0, (x - 1).bit_length()), "min": min}  # log2 within ceil: exact
CONVERSATIONS = {"powersgd", "acpsgd", "gradzip", "gradiveq", "sketchedsgd", "thc"}


class Row(NamedTuple):
    names: tuple[str, ...]
    where: str
    fields: list[str]


class Mismatch(Exception):
    """The bytes are not what the row says."""


def rows() -> Iterator[Row]:
    text = PAGE.read_text(encoding="utf-8").partition("## The wires of the methods")[2].partition("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            names = tuple(re.findall(r"`(\w+)`", cells[0]))
            yield Row(names, cells[1].strip("`"), cells[2].strip("`").split("; "))


ROWS = list(rows())


def evaluate(text: str, letters: dict[str, Any]) -> Any:
    return eval(compile(ast.parse(text, mode="eval"), "<the page>", "eval"), {**FUNCTIONS, **letters})


def list_bytes(code: str, n: int, k: int, body: bytes) -> int:
    """Bytes of an index list, by what the page says of each code."""
    if k == 0:
        return 0
    size = {"raw": -(-k * max(1, (n - 1).bit_length()) // 8), "bitmap": -(-n // 8)}
    size["elias-fano"] = min(
        ((k * low + k + ((n - 1) >> low)), low, -(-k * low // 8) + -(-(k + ((n - 1) >> low)) // 8))
        for low in range(n.bit_length() + 1)
    )[2]
    if code == "auto":
        return min(size.values())
    if code == "rice":
        at = 1 + -(-k * body[0] // 8)
        bits = "".join(f"{byte:08b}"[::-1] for byte in body[at:])
        ends = [i for i, bit in enumerate(bits) if bit == "0"]
        return at + ends[k - 1] // 8 + 1
    if code == "delta":
        widths = unpack(body, 5, -(-k // 128))
        return -(-5 * len(widths) // 8) + sum(-(-min(128, k - 128 * i) * w // 8) for i, w in enumerate(widths))
    return size[code]


def unpack(body: bytes, width: int, count: int) -> list[int]:
    stream = int.from_bytes(body[: -(-width * count // 8)], "little")
    return [stream >> (width * i) & ((1 << width) - 1) for i in range(count)]


def parse(wire: bytes, row: Row, letters: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Ends of the fields of a row, and their values."""
    at, letters = 0, dict(letters)
    for field in row.fields:
        match = FIELD.match(field)
        assert match, field
        name, kind, width, count = match.groups()
        kind = letters["values"] if kind == "value" else kind
        if count == "cells(groups)":
            number, total = _cells(letters), 0
            at += number
            continue
        total = 1 if count is None else int(evaluate(count, letters))
        if total < 0:
            raise Mismatch(field)
        if kind == "list":
            at += list_bytes(letters["index"], letters["n"], total, wire[at:])
            continue
        if kind in ("bits", "trits"):
            bits = int(evaluate(width, letters)) if kind == "bits" else 0
            size = -(-bits * total // 8) if bits else (-(-total // 5) if kind == "trits" else 0)
            letters[name] = unpack(wire[at:], bits, total) if bits else list(wire[at : at + size])
            if kind == "trits" and max(letters[name], default=0) > 242:
                raise Mismatch(field)
        else:
            size = total * struct.calcsize("<" + WIDTHS[kind])
            if at + size > len(wire):
                raise Mismatch(field)
            values = struct.unpack_from(f"<{total}{WIDTHS[kind]}", wire, at)
            letters[name] = values[0] if count is None else list(values)
        at += size
    return at, letters


def _cells(letters: dict[str, Any]) -> int:
    """Bytes of the cells of sketchml."""
    method: Any = letters["method"]
    sides = BucketGroups.of(method.quantiles, letters["negative"], method.groups)
    out = 0
    for group, width in enumerate(sides.widths):
        if (count := letters["groups"].count(group)) and width > 1:
            out += -(-method.rows * math.ceil(method.share * count) * (width - 1).bit_length() // 8)
    return out


def letters_of(method: Any, n: int) -> dict[str, Any]:
    knobs = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    if type(method).__name__ == "Natural":
        knobs["block"] = method._block(n)
    if "ratio" in knobs and knobs["ratio"] is not None:
        knobs["k"] = max(1, math.ceil(knobs["ratio"] * n - 1e-9 * n))
        knobs["kb"] = max(1, math.ceil(knobs["ratio"] * -(-n // knobs.get("block", n)) - 1e-9))
    return {"values": "float32", **knobs, "s": getattr(method, "s", None), "n": n, "method": method, "m": 8, "l": 6}


def fitting(name: str, letters: dict[str, Any], wire: bytes) -> Row:
    """The one row that is for these knobs and these bytes."""
    first = struct.unpack_from("<i", wire)[0] if len(wire) >= 4 else 0
    there = {**letters, "count": first, "sure": first}
    rows = [
        row for row in ROWS if name in row.names and (row.where in ("", "summed") or evaluate(row.where, there))
    ]  # fmt: skip
    conditional = [row for row in rows if row.where not in ("", "summed")] or rows
    assert len(conditional) == 1, f"{name}: {conditional}"
    return conditional[0]


def test_every_method_is_specified() -> None:
    text = PAGE.read_text(encoding="utf-8")
    conversations = text.partition("\n## Conversations")[2]
    listed = {name for row in ROWS for name in row.names}
    assert listed | CONVERSATIONS | {"rht"} == set(own())
    for name in CONVERSATIONS:
        assert f"| `{name}` | 1 |" in conversations


def own() -> list[str]:
    return [name for name in grace.methods() if name in {spec.partition(":")[0] for spec in GOLDEN}]


@pytest.mark.parametrize("spec", [spec for spec in COMPRESSORS if not spec.startswith("rht")])
def test_a_golden_wire_is_what_the_page_says(spec: str) -> None:
    wire, method = bytes.fromhex(GOLDEN[spec]["wire"]), COMPRESSORS[spec]
    letters = letters_of(method, 37)
    end, _ = parse(wire, fitting(spec.partition(":")[0], letters, wire), letters)
    assert end == len(wire)


@pytest.mark.parametrize("n", [1, 64, 1000, 100_003])
def test_sizes_that_are_declared_follow_from_the_page(n: int) -> None:
    checked = 0
    for spec, method in COMPRESSORS.items():
        size = method.facts(n).payload
        if size is None or spec.startswith("rht"):
            continue
        letters = letters_of(method, n)
        row = fitting(spec.partition(":")[0], letters, b"")
        end, _ = parse(bytes(size), row, letters)
        assert end == size, f"{spec}, {n} numbers"
        checked += 1
    assert checked > 25


@pytest.mark.parametrize("name", ["sidco", "atomosvd", "varsparse"])
def test_sealed_wires_of_conversations(name: str) -> None:
    (spec,) = [spec for spec in GOLDEN if spec.partition(":")[0] == name]
    sealed = bytes(int(byte) for byte in GOLDEN[spec]["round 1"])
    letters = letters_of(CORES[spec], 48)
    end, _ = parse(sealed[4:], fitting(name, letters, sealed[4:]), letters)
    assert 4 + end + (-end % 4) == len(sealed)


def test_rounds_have_the_sizes_of_the_page() -> None:
    n, r, m, l = 48, 2, 8, 6
    assert _round("powersgd", 0) == r * m
    assert _round("powersgd", 1) == r * l
    assert _round("acpsgd", 0) == m * r
    assert [_round("gradzip", i) for i in (0, 1)] == [m * r, l * r]
    K, d = 4, 1
    assert [_round("gradiveq", i) for i in (0, 1)] == [n, K * d]
    assert _round("sketchedsgd", 0) == n
    assert [_round("thc", i) for i in (0, 1, 2)] == [3, -(-4 * n // 8), -(-5 * n // 8)]
    assert _round("blockrandomk", 0) == 16


def _round(name: str, index: int) -> int:
    (spec,) = [spec for spec in GOLDEN if spec.partition(":")[0] == name]
    return len(GOLDEN[spec][f"round {index}"])


def test_a_wrong_row_is_noticed() -> None:
    wire, method = (
        bytes.fromhex(GOLDEN["topk:ratio=0.125,index=raw"]["wire"]),
        COMPRESSORS["topk:ratio=0.125,index=raw"],
    )
    letters = letters_of(method, 37)
    wrong = Row(("topk",), "", ["values: value[k]", "indices: list[k - 1]"])
    assert parse(wire, wrong, letters)[0] != len(wire)
    assert isinstance(method, Compressor)
