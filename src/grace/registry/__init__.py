"""Names and strings for methods: ``"topk:ratio=0.01,memory=none"`` <-> objects. Strict: unknown keys are errors.

A registered class carries its *recipe*: the communicator and the memory that the survey ran it with. Packages add
methods, memories and communicators of their own through entry points, whose values name a registered class::

    [project.entry-points."grace.methods"]
    mymethod = "mypackage.mymodule:MyMethod"

    [project.entry-points."grace.memories"]
    mymemory = "mypackage.mymodule:MyMemory"
"""

from __future__ import annotations

from grace.registry.composition import build
from grace.registry.discovery import from_file
from grace.registry.recipes import (
    COMMUNICATORS,
    MEMORIES,
    METHODS,
    Recipe,
    documentation,
    is_own,
    methods,
    recipe,
    recipe_of,
    register,
    register_communicator,
    register_memory,
    register_wrapper,
)
from grace.registry.text import method, parse, read_method, resolve, short, spell, split_commas, split_methods

__all__ = [
    "COMMUNICATORS",
    "MEMORIES",
    "METHODS",
    "Recipe",
    "build",
    "documentation",
    "from_file",
    "is_own",
    "method",
    "methods",
    "parse",
    "read_method",
    "recipe",
    "recipe_of",
    "register",
    "register_communicator",
    "register_memory",
    "register_wrapper",
    "resolve",
    "short",
    "spell",
    "split_commas",
    "split_methods",
]
