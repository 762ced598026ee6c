"""``make goldens`` adds the golden bytes of methods that have none yet, or of specs that are named:

``python -m tests.golden.make topk:ratio=0.125``. What is there stays as it is, but for ``--again``, which writes all of it
anew: for a new version of the wire format only.
"""

from __future__ import annotations

import json
import sys

import grace
from tests.golden.golden import FILE, GOLDEN, example, record


def main(args: list[str]) -> None:
    """Writes golden.json: one line for each spec."""
    known = {name.partition(":")[0] for name in GOLDEN}
    again = "--again" in args
    named = [arg for arg in args if arg != "--again"]
    new = [*named, *(example(name) for name in grace.methods() if name not in known)]
    entries = {spec: record(spec) if again else entry for spec, entry in GOLDEN.items()}
    entries |= {spec: record(spec) for spec in new if spec not in entries}
    lines = ",\n".join(f"{json.dumps(spec)}: {json.dumps(entry)}" for spec, entry in entries.items())
    FILE.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
