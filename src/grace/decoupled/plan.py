"""The settings that learners and syncer must have in common: parameters, fragments, codecs and schedule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from grace import wire
from grace.adapters.outer.fragments import balance
from grace.decoupled.codec import read_codec, spell_codec
from grace.errors import ConfigurationError, FingerprintMismatch, PayloadError, out_of_range
from grace.version import __version__

MOST_BYTES = (1 << 31) - (1 << 20)  # of a fragment: gRPC's messages have less than 2**31
_MOST_NUMBERS = 1 << 40  # of one model, in what a stranger sends
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings that learners and syncer must have in common.

    names, shapes: of the parameters, in the model's order. plain: those that are averaged plainly, such as embeddings.
    fragments: for each fragment the places of its parameters. every: H, steps after which a fragment is due again. overlap:
    steps that the exchange of a fragment may take. up, down: codecs of what learners send and get. seed: of all random
    streams. versions: of Grace and of the wire format.
    """

    names: list[str]
    shapes: list[list[int]]
    plain: list[bool]
    fragments: list[list[int]]
    every: int
    overlap: int
    up: str
    down: str
    seed: int
    versions: list[str]

    @classmethod
    def of(
        cls,
        parameters: Mapping[str, Tensor],
        *,
        every: int,
        fragments: int = 1,
        overlap: int = 1,
        up: str = "none",
        down: str | None = None,
        plain: Sequence[str] = (),
        seed: int = 0,
    ) -> Plan:
        """The plan for these parameters, of any shapes. ``down`` is by default bf16, or none where ``up`` is.

        Raises:
            ConfigurationError: a number out of range, more fragments than parameters, or a codec that cannot be used.
        """
        for name, value, least in (("every", every, 1), ("fragments", fragments, 1), ("overlap", overlap, 0)):
            if type(value) is not int or value < least:
                raise out_of_range("decoupled", name, value, f"a whole number >= {least}")
        if not 0 <= seed < 1 << 63:
            raise out_of_range("decoupled", "seed", seed, "0 <= seed < 2**63")
        if fragments > every:
            raise out_of_range(
                "decoupled", "fragments", fragments, f"1 to every={every}, so that each has a step of its own"
            )
        if fragments > len(parameters):
            raise out_of_range("decoupled", "fragments", fragments, f"1 to {len(parameters)}, the number of parameters")
        shapes = [list(p.shape) for p in parameters.values()]
        sent = spell_codec(up)
        got = spell_codec(down or ("none" if sent == "none" else "bf16"))
        parts = balance(dict(enumerate(map(math.prod, shapes))), fragments)
        places = [list(part) for part in parts]
        for fragment in places:
            if (size := sum(4 * math.prod(shapes[place]) for place in fragment)) > MOST_BYTES:
                raise ConfigurationError(
                    f"decoupled: with fragments={fragments} one has {size:,} bytes, and a message at most {MOST_BYTES:,}: cut "
                    "the model into more of them"
                )
        return cls(
            list(parameters), shapes, [name in plain for name in parameters],
            places, every, overlap, sent, got,
            seed, [__version__, str(wire.VERSION)],
        )  # fmt: skip

    def sizes(self, fragment: int) -> list[int]:
        """Numbers of each parameter of a fragment."""
        return [math.prod(self.shapes[place]) for place in self.fragments[fragment]]

    def first_due(self, fragment: int) -> int:
        """Steps after which a fragment is due for the first time: they are staggered over H."""
        return max(1, -(-self.every * (fragment + 1) // len(self.fragments)))

    def check(self, sender: str) -> None:
        """Checks a plan that came over the network.

        Raises:
            PayloadError: it is not such as :meth:`of` makes; names the sender.
        """

        def refuse(why: str) -> PayloadError:
            return PayloadError(f"the plan of {sender} {why}")

        if not self.names or not len(self.names) == len(set(self.names)) == len(self.shapes) == len(self.plain):
            raise refuse("must have one shape and one flag for each of its parameters, whose names differ")
        if any(n < 0 for shape in self.shapes for n in shape):
            raise refuse("has a negative size")
        if sum(math.prod(shape) for shape in self.shapes) > _MOST_NUMBERS:
            raise refuse(f"has more than {_MOST_NUMBERS:,} numbers")
        if sorted(place for fragment in self.fragments for place in fragment) != list(range(len(self.names))):
            raise refuse("must have each parameter in one fragment")
        if not all(self.fragments) or not 1 <= len(self.fragments) <= self.every or self.overlap < 0:
            raise refuse("has an empty fragment, or a schedule that cannot be")
        try:
            read_codec(self.up)
            read_codec(self.down)
        except ConfigurationError as error:
            raise refuse(f"names a codec that cannot be used: {error}") from error

    def refuse_other(self, other: Plan, sender: str) -> None:
        """Refuses a learner with another plan.

        Raises:
            FingerprintMismatch: says what differs.
        """
        differences = []
        for field in dataclasses.fields(self):
            own, theirs = getattr(self, field.name), getattr(other, field.name)
            if own == theirs:
                continue
            if field.name == "names":
                missing, more = sorted(set(own) - set(theirs)), sorted(set(theirs) - set(own))
                told = [f"lacks {', '.join(missing[:_NAMES_SHOWN])}"] if missing else []
                told += [f"has also {', '.join(more[:_NAMES_SHOWN])}"] if more else []
                differences.append(f"parameters: it {' and '.join(told) or 'has them in another order'}")
            elif field.name == "shapes" and len(own) == len(theirs):
                place = next(i for i, pair in enumerate(zip(own, theirs, strict=True)) if pair[0] != pair[1])
                differences.append(f"shape of {self.names[place]!r}: {theirs[place]}, here {own[place]}")
            elif field.name not in ("shapes", "plain", "fragments"):
                differences.append(f"{field.name}: {theirs!r}, here {own!r}")
            elif field.name == "fragments" and len(own) != len(theirs):
                differences.append(f"fragments: {len(theirs)}, here {len(own)}")
        text = "; ".join(differences) or "how its parameters are cut or averaged"
        raise FingerprintMismatch(
            f"{sender} differs from this run in {text}. All learners of a syncer train one model with the same settings"
        )
