"""A lossless stage for streams of symbols, such as quantized numbers: zlib, zstd, or the bytes themselves.

A stream is one byte, the stage (0 raw, 1 zlib, 2 zstd), and the bytes of the stage. Raw is the escape: no stream
exceeds its input by more than that byte. zlib is in Python; zstd needs the package ``zstandard``.
"""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from typing import Any, Literal, TypeAlias

from grace.errors import ConfigurationError, PayloadError, out_of_range

Stage: TypeAlias = Literal["zlib", "zstd"]

STAGES = {"raw": 0, "zlib": 1, "zstd": 2}
_LEVELS = {"zlib": 9, "zstd": 19}


def check_stage(owner: str, stage: str, level: int) -> None:
    """The knobs ``stage`` and ``level``.

    Raises:
        ConfigurationError: one that is unknown or out of range, or a package that is not installed.
    """
    if stage not in _LEVELS:
        raise out_of_range(owner, "stage", stage, ", ".join(map(repr, _LEVELS)))
    if not (isinstance(level, int) and 1 <= level <= _LEVELS[stage]):
        raise out_of_range(owner, "level", level, f"1, 2, ..., {_LEVELS[stage]} with {stage}")
    if stage == "zstd" and importlib.util.find_spec("zstandard") is None:
        raise ConfigurationError(f"{owner}: stage='zstd' needs the package zstandard; install it, or use stage='zlib'")


def shrink(raw: bytes, stage: str, level: int) -> bytes:
    """The bytes as a stream."""
    packed = zlib.compress(raw, level) if stage == "zlib" else _zstd().ZstdCompressor(level=level).compress(raw)
    if len(packed) >= len(raw):
        return bytes([STAGES["raw"]]) + raw
    return bytes([STAGES[stage]]) + packed


def expand(stream: bytes, size: int) -> bytes:
    """The ``size`` bytes that a stream holds; never expands to more than those.

    Raises:
        PayloadError: not a stream, or one of another number of bytes; or its stage is not installed.
    """
    stage, packed = stream[:1], stream[1:]
    if stage == bytes([STAGES["raw"]]):
        raw = packed
    elif stage == bytes([STAGES["zlib"]]):
        raw = _unzip(packed, size)
    elif stage == bytes([STAGES["zstd"]]):
        raw = _unzstd(packed, size)
    else:
        raise PayloadError(f"field 'stage' must be one of {sorted(STAGES.values())}, got {list(stage)}")
    if len(raw) != size:
        raise PayloadError(f"field 'stream' must hold {size} bytes, got {len(raw)}")
    return raw


def _unzip(packed: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise PayloadError(f"field 'stream' is not a zlib stream: {error}") from error
    if not stream.eof or stream.unused_data:
        raise PayloadError(f"field 'stream' is not one whole zlib stream of {size} bytes")
    return raw


def _unzstd(packed: bytes, size: int) -> bytes:
    zstd = _zstd()
    try:
        if zstd.frame_content_size(packed) != size:
            raise PayloadError(f"field 'stream' is not one zstd frame of {size} bytes")
        raw: bytes = zstd.ZstdDecompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise PayloadError(f"field 'stream' is not a zstd stream: {error}") from error
    return raw


def _zstd() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise PayloadError("field 'stage' is zstd, but the package zstandard is not installed") from error
