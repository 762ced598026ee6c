"""Chooses the method of each tensor by name, shape, size and step. The first rule that matches decides."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Size, Tensor

from grace.contract.knobs import as_call
from grace.contract.method import Method
from grace.errors import ConfigurationError, nearest, one_of
from grace.registry import method as make_method
from grace.registry import spell
from grace.registry.adaptive import Adaptive

_PREFIXES = ("module.", "_orig_mod.")  # of wrapped and of compiled models
SMALL = 1024  # tensors with fewer elements go uncompressed by default


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of a policy: the tensors that it is for, and their method.

    Args:
        pattern: shell-style pattern for the tensor's name: ``"*.bias"``, ``"embed*"``.
        method: a method, or the string that makes it.
        min_size, max_size: number of elements, inclusive.
        min_ndim, max_ndim: number of dimensions, inclusive.
        from_step, until_step: global steps, the first inclusive, the last exclusive.
    """

    pattern: str
    method: Method[Any] | str
    min_size: int = 0
    max_size: int | None = None
    min_ndim: int = 0
    max_ndim: int | None = None
    from_step: int = 0
    until_step: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise ConfigurationError(f"Rule: pattern must be a string such as '*.bias', got {self.pattern!r}")
        object.__setattr__(self, "method", make_method(self.method))
        for low, high in (("min_size", "max_size"), ("min_ndim", "max_ndim"), ("from_step", "until_step")):
            first, last = getattr(self, low), getattr(self, high)
            if first < 0 or (last is not None and last < first):
                raise ConfigurationError(f"Rule {self.pattern!r}: {low}={first}, {high}={last} matches nothing")

    def matches(self, name: str, like: Tensor, step: int) -> bool:
        """True if this rule is for a tensor like this one at that step."""
        return (
            fnmatch.fnmatchcase(name, self.pattern)
            and self.min_size <= like.numel() <= (like.numel() if self.max_size is None else self.max_size)
            and self.min_ndim <= like.ndim <= (like.ndim if self.max_ndim is None else self.max_ndim)
            and self.from_step <= step < (step + 1 if self.until_step is None else self.until_step)
        )

    @property
    def timeless(self) -> bool:
        """True if it holds at every step."""
        return self.from_step == 0 and self.until_step is None

    def settled(self, step: int) -> bool:
        """True if it holds at all steps from this one on, or at none."""
        return self.from_step <= step and (self.until_step is None or self.until_step <= step)

    def __str__(self) -> str:
        limits = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if field.name not in ("pattern", "method") and getattr(self, field.name) != field.default
        ]
        assert isinstance(self.method, Method)
        return " ".join([f"{self.pattern!r} -> {spell(self.method)}", *limits])


class Policy:
    """An ordered list of rules; ``Rule`` objects or pairs ``(pattern, method)``.

    Rules mean what they say: your own policy treats small tensors like all others unless a rule says otherwise.

    Args:
        rules: in the order in which they are tried.
        strict: whether a rule that matches no tensor's name is an error when the policy is applied to a model; False for a
            policy that several models share.

    Raises:
        ConfigurationError: no rules, or a rule that cannot be read.

    Example:
        >>> policy = Policy([("*.bias", "none"), ("embed*", "topk:ratio=0.001"), ("*", "qsgd:bits=4")])
        >>> policy.method_for("embed.weight", torch.zeros(10, 10), step=0)
        ErrorFeedback(method=Allgather(compressor=TopK(ratio=0.001, index='auto', values='float32')),
                      beta=1.0, gamma=1.0)
    """

    def __init__(self, rules: Iterable[Rule | tuple[str, Method[Any] | str]], *, strict: bool = True):
        given: Any = rules
        if isinstance(given, str | Method | Mapping) or not isinstance(given, Iterable):
            as_rules = ""
            if isinstance(given, str | Method | Mapping):
                meant = given.items() if isinstance(given, Mapping) else [("*", given)]
                pairs = ", ".join(f"({pattern!r}, {as_call(method)})" for pattern, method in meant)
                as_rules = f"; as rules it is Policy([{pairs}])"
            raise ConfigurationError(
                f"Policy: rules={as_call(given)} is no list of rules; for one method, with small tensors uncompressed, write "
                f'Policy.of("topk"){as_rules}'
            )
        entries: list[Rule] = []
        for rule in rules:
            if isinstance(rule, tuple) and len(rule) == 2:
                rule = Rule(*rule)
            if not isinstance(rule, Rule):
                raise ConfigurationError(f"a rule is grace.Rule(...) or (pattern, method), got {rule!r}")
            # equal methods are one object, so that their tensors are exchanged as one batch
            same = next((entry.method for entry in entries if entry.method == rule.method), rule.method)
            entries.append(rule if same is rule.method else dataclasses.replace(rule, method=same))
        if not entries:
            raise ConfigurationError('a policy needs at least one rule, such as ("*", "none")')
        self.rules = tuple(entries)
        self.strict = strict
        self.timeless = all(rule.timeless for rule in self.rules)
        self.method: Method[Any] | None = None  # what :meth:`of` was given
        self._cache: dict[str, tuple[Size, Method[Any]]] = {}  # for a shape of each name, the last

    @classmethod
    def of(cls, spec: Policy | Method[Any] | str) -> Policy:
        """A policy as it is; for a method the default: tensors of at most one dimension and tensors under 1,024
        elements go uncompressed, fused into one all-reduce; the method takes the rest. If its memory takes the place of the
        optimizer's momentum, as that of ``dgc`` does, they have the same momentum: ``none:memory=dgc``. ``bf16`` and
        ``fp16`` over an all-reduce take all tensors, as torch's hooks do.
        """
        if isinstance(spec, Policy):
            return spec
        method = make_method(spec)
        small = method.uncompressed(make_method("none"))
        policy = cls([Rule("*", small, max_ndim=1), Rule("*", small, max_size=SMALL - 1), Rule("*", method)])
        policy.method = method
        return policy

    @staticmethod
    def adaptive(
        method: str = "qsgd", budget: float = 4.0, every: int = 1000, how: Literal["program", "filling"] = "program"
    ) -> Adaptive:
        """Bits, ratio or rank of each layer follow its gradients, under one budget; for :func:`grace.attach` and
        :func:`grace.DistributedOptimizer`. Layers are the tensors that a bare method compresses. Every ``every`` steps all
        ranks choose anew, alike, what loses least of the model's gradient.

        Args:
            method: "qsgd", whose bits follow the layer; "topk", its ratio; or "powersgd", its rank.
            budget: bits of a wire for each number of the layers, > 0.
            every: steps from one choice to the next, >= 1.
            how: "program", the best whole choices (L-GreCo's programme); or "filling", real bits rounded down.

        Raises:
            ConfigurationError: another method, or a knob out of range.

        Example:
            >>> Policy.adaptive("topk", budget=0.5).choices[2]
            'topk:ratio=0.01'
        """
        return Adaptive(method, budget, every, how)

    def method_for(self, name: str, like: Tensor, step: int) -> Method[Any]:
        """The method of the first rule that matches a tensor like this one.

        Raises:
            ConfigurationError: no rule matches.
        """
        known = self._cache.get(name)
        if known is not None and known[0] == like.shape:
            return known[1]
        for rule in self.rules:
            if rule.matches(name, like, step):
                assert isinstance(rule.method, Method)
                if self.timeless:
                    self._cache[name] = (like.shape, rule.method)
                return rule.method
        raise ConfigurationError(
            f"no rule of the policy matches {name!r} {tuple(like.shape)} at step {step}; "
            'end the policy with ("*", "none")'
        )

    def methods_for(self, name: str, like: Tensor) -> tuple[Method[Any], ...]:
        """All methods that a tensor like this one gets at one step or another, each once."""
        methods: dict[Method[Any], None] = {}
        for rule in self.rules:
            if rule.matches(name, like, rule.from_step):
                assert isinstance(rule.method, Method)
                methods[rule.method] = None
                if rule.timeless:
                    break
        return tuple(methods)

    def axes(self, world: int) -> Mapping[str, int]:
        """The axes along which its methods exchange; see :meth:`grace.Method.axes`.

        Raises:
            ConfigurationError: so many workers cannot lie so, or two rules want them to lie differently.
        """
        wanted: dict[str, Mapping[str, int]] = {}
        for rule in self.rules:
            assert isinstance(rule.method, Method)
            if axes := rule.method.axes(world):
                wanted[spell(rule.method)] = axes
        if any(axes != other for axes in wanted.values() for other in wanted.values()):
            raise ConfigurationError(
                f"the methods of a policy lie on one grid, and these want several: "
                f"{'; '.join(f'{text} {dict(axes)}' for text, axes in wanted.items())}"
            )
        return next(iter(wanted.values()), {})

    def check_names(self, names: Collection[str]) -> None:
        """Refuses a rule that matches none of these tensors: its pattern is misspelled, or was written for another model.

        Raises:
            ConfigurationError: there is such a rule, and the policy is ``strict``; names the nearest tensors.
        """
        for index, rule in enumerate(self.rules if self.strict else ()):
            if not any(fnmatch.fnmatchcase(name, rule.pattern) for name in names):
                raise ConfigurationError(
                    f"rule {index + 1} of the policy, {rule}, is for no parameter{_guess(rule.pattern, names)}. "
                    "A policy for several models: grace.Policy(..., strict=False)"
                )

    def __eq__(self, other: object) -> bool:
        return self.rules == other.rules if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.rules)

    def __repr__(self) -> str:
        return f"Policy({'; '.join(map(str, self.rules))})"


def _guess(pattern: str, names: Collection[str]) -> str:
    """A guess at what was meant by a pattern that matches none of these names."""
    for prefix in _PREFIXES:
        tail = pattern.removeprefix(prefix)
        if tail != pattern and any(fnmatch.fnmatchcase(name, tail) for name in names):
            return f": names come without {prefix!r}; write {tail!r}"
    near = nearest(pattern.strip("*"), names, cutoff=0.4)
    return f"; nearest: {one_of(near)}" if near else f"; there are {', '.join(map(repr, list(names)[:3]))}, ..."
