"""The knobs of methods: frozen dataclasses as the calls that make them."""

from __future__ import annotations

import dataclasses


def as_call(instance: object) -> str:
    """A frozen dataclass as the call that makes it, without knobs at their defaults: ``TopK(ratio=0.02)``."""
    if not dataclasses.is_dataclass(instance):
        return repr(instance)
    parts = []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.default is dataclasses.MISSING:
            parts.append(as_call(value))
        elif value != field.default:
            parts.append(f"{field.name}={as_call(value)}")
    return f"{type(instance).__name__}({', '.join(parts)})"


def spell_value(value: object) -> str:
    """A knob's value as strings spell it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
