"""A recipe and knobs -> a method: a compressor, what follows it, its communicator, its memory, its schedule.

A knob belongs to the first of these layers that has a field of its name: the method, its communicator, its memory. Where two
layers share a name, or for clarity, name the layer: ``memory.beta``, ``communicator.server``, ``lossless.level``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from grace.contract.method import Method
from grace.contract.wrapping import layers, own_fields
from grace.errors import CompositionError, ConfigurationError, unknown
from grace.registry.recipes import COMMUNICATORS, MEMORIES, OUTER, WRAPPERS, Recipe, recipe_of
from grace.schedules import Delayed, Schedule, Scheduled

Knobs: TypeAlias = dict[str, Any]
# Other libraries' words for how much is kept.
_MEANT = dict.fromkeys(("k", "K", "density", "compress_ratio", "fraction", "sparsity"), "ratio")


@dataclass(frozen=True, slots=True)
class Template:
    """Builds the method of one step for :class:`grace.schedules.Scheduled`."""

    recipe: Recipe

    @property
    def name(self) -> str:
        """The registered name."""
        return self.recipe.name

    def build(self, knobs: Knobs) -> Method[Any]:
        """The method with these knobs."""
        return build(self.recipe, knobs)

    def uncompressed(self, knobs: Knobs, plain: Method[Any]) -> Method[Any]:
        """``plain`` in the memory that these knobs make."""
        entry, given = recipe_of(type(layers(plain)[-1])), dict(knobs)
        of_layers = _choose_layers(self.recipe, given)
        memory = MEMORIES.name_of(of_layers["memory"])
        assert entry is not None
        return build(entry, {"memory": memory, **_distribute(self.recipe, given, of_layers)["memory"]})


def build(entry: Recipe, knobs: Knobs) -> Method[Any]:
    """The recipe with these knobs; with a delay or schedules around it, if the knobs ask for them.

    Raises:
        UnknownNameError: an unknown knob, communicator or memory; names the nearest.
        ConfigurationError: a knob out of range, or an impossible composition.
    """
    for knob, factory in find_outer().items():
        if knob in knobs and knob not in own_fields(entry.factory):
            others = {name: value for name, value in knobs.items() if name != knob}
            value = knobs[knob]
            if isinstance(value, str) and hasattr(factory, "read_word"):
                value = factory.read_word(value)
            wrapped: Method[Any] = _construct(factory, {knob: value}, build(entry, others))
            return wrapped
    if any(Schedule.is_one(value) for value in knobs.values()):
        given = {knob: Schedule.of(value) if Schedule.is_one(value) else value for knob, value in knobs.items()}
        return Scheduled(Template(entry), tuple(given.items()))
    return _compose(entry, dict(knobs))


def find_outer() -> dict[str, type]:
    """The wrappers of a whole method, by their knobs; the first is outermost."""
    return {"start": Delayed, **OUTER}


def _compose(entry: Recipe, knobs: Knobs) -> Method[Any]:
    layers = _choose_layers(entry, knobs)
    given = _distribute(entry, knobs, layers)
    built: Any = None
    for label, factory in layers.items():
        inner = () if built is None else (built,)
        built = _construct(factory, given[label], *inner)
    result: Method[Any] = built
    return result


def _choose_layers(entry: Recipe, knobs: Knobs) -> dict[str, type]:
    """The classes of a method's layers by their labels in strings, innermost first; removes the knobs that choose them."""
    layers = {"method": entry.factory}
    for knob, factory in WRAPPERS.items():
        if knob not in knobs:
            continue
        if entry.communicator is None:
            raise CompositionError(f"{entry.name} has its own exchange, and {knob} is for compressors")
        layers[knob] = factory
        knobs[f"{knob}.{own_fields(factory)[0]}"] = knobs.pop(knob)
    communicator = knobs.pop("communicator", entry.communicator)
    if entry.communicator is not None:
        layers["communicator"] = COMMUNICATORS.find(communicator)
    elif communicator is not None:
        raise CompositionError(f"{entry.name} has its own exchange and takes no communicator, got {communicator!r}")
    memory = knobs.pop("memory", entry.memory)
    if memory not in (None, "none"):  # the word "none" parses to None
        if memory not in MEMORIES:
            raise unknown("memory", str(memory), {*MEMORIES.names(), "none"})
        layers["memory"] = MEMORIES.find(memory)
    return layers


def _distribute(entry: Recipe, knobs: Knobs, layers: dict[str, type]) -> dict[str, Knobs]:
    """Each layer's own knobs."""
    given: dict[str, Knobs] = {label: {} for label in layers}
    owners: dict[str, str] = {}
    for label in ("memory", "communicator", "method"):  # the method's own knobs win
        if label in layers:
            owners.update(dict.fromkeys(own_fields(layers[label]), label))
    for knob, value in knobs.items():
        label, dot, name = knob.rpartition(".")
        label = label if dot else owners.get(knob, "")
        if label not in layers or name not in own_fields(layers[label]):
            legal = {*owners, *WRAPPERS, *find_outer(), "communicator", "memory"}
            legal |= {
                f"{layer}.{field}" for layer in layers if layer != "method" for field in own_fields(layers[layer])
            }
            means = _MEANT.get(name, "")
            hint = f"Write {means}=0.01, the share that is kept." if means in owners else ""
            raise unknown(
                f"knob of {entry.name}", knob, legal if dot else {name for name in legal if "." not in name}, hint
            )
        if name in given[label]:
            raise ConfigurationError(f"{entry.name}: knobs given twice: {name} and {label}.{name}")
        given[label][name] = value
    if "memory" in layers and MEMORIES.name_of(layers["memory"]) == entry.memory:
        given["memory"] = dict(entry.memory_knobs) | given["memory"]
    return given


def _construct(factory: type, own: Knobs, *inner: Any) -> Any:
    try:
        return factory(*inner, **own)
    except TypeError as error:
        text = ", ".join(f"{knob}={value!r}" for knob, value in own.items())
        raise ConfigurationError(f"{factory.__name__}: {text}: {error}") from error
