"""Writes golden.json anew: ``python -m tests.golden.make``. For a new method, or a new version of the wire format."""

from __future__ import annotations

import json

from tests.golden.golden import COMPRESSORS, FILE, METHODS, conversation, decoded, encoded


def made() -> dict[str, object]:
    """All golden bytes and what they decode to."""
    out: dict[str, object] = {}
    for name, compressor in COMPRESSORS.items():
        wire = bytes(encoded(compressor).tolist())
        out[name] = {"wire": wire.hex(), "decoded": decoded(compressor, wire)}
    return out | {name: conversation(method) for name, method in METHODS.items()}


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in made().items())
    FILE.write_text("{\n" + lines + "\n}\n")
