"""The laws, run on anybody's method: ``grace verify MODULE:CLASS``, or ``verify(method)`` in Python."""

from __future__ import annotations
