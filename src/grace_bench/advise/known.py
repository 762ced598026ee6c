"""What the suite knows of a method's quality."""

from __future__ import annotations

import functools
from importlib.resources import files

import msgspec

import grace
from grace.errors import GraceError


class Quality(msgspec.Struct, frozen=True):
    """What training ended with. value: the method's. fp32: uncompressed training's. source: where that stands."""

    metric: str
    value: float
    fp32: float
    source: str

    @property
    def loss(self) -> float:
        """How much worse it is, as a share of uncompressed training's."""
        return self.value / self.fp32 - 1


class _Qualities(msgspec.Struct):
    source: str
    metric: str
    better: str
    fp32: float
    methods: dict[str, float]


@functools.cache
def _read() -> tuple[_Qualities, dict[str, float]]:
    found = msgspec.json.decode((files(__package__) / "known.json").read_bytes(), type=_Qualities)
    return found, {grace.spell(grace.method(name)): value for name, value in found.methods.items()}


def quality_of(method: str) -> Quality | None:
    """What is known of this method with these knobs, over any communicator; None: nothing."""
    known, values = _read()
    try:
        name = grace.spell(grace.method(method))
    except GraceError:
        return None
    plain = name.replace(":communicator=scatterreduce,", ":").replace(",communicator=scatterreduce", "")
    plain = plain.removesuffix(":communicator=scatterreduce")
    value = values.get(plain)
    return None if value is None else Quality(known.metric, value, known.fp32, known.source)
