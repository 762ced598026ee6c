"""A handle whose method may be ``auto``: what an adapter with buckets does with :class:`grace.auto.driver.Driver`."""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from grace.adapters.handle import BaseHandle
from grace.auto.adaptive import Adapted, Adapting
from grace.auto.choices import read_methods
from grace.auto.driver import Driver
from grace.auto.explain import Explanation
from grace.auto.settings import Auto, wanted
from grace.auto.site import Site
from grace.contract.method import Method
from grace.errors import ConfigurationError, NonFiniteError, StateError
from grace.registry import read_method
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy, Rule
from grace.run.checkpoint import Chooser
from grace.run.saved import OwnState, refuse_dcp
from grace.run.streams import Streams


def read_choice(
    method: Policy | Method[Any] | Auto | Adaptive | str,
) -> tuple[Auto | Adaptive | None, Policy | Method[Any] | str, dict[str, object]]:
    """The chooser, the method that is used before it has chosen, and what ranks must have in common for it. None: the
    method was given.
    """
    auto = wanted(method)
    if auto is None:
        assert not isinstance(method, Auto | Adaptive)
        return None, method, {}
    return auto, "none", {"auto": str(auto)}


class Choosing(BaseHandle):
    """A handle that may choose methods by itself. To derive from."""

    _driver: Driver | Adapting | None = None
    _clock: Callable[[], int] = staticmethod(time.perf_counter_ns)
    _streams: Streams | None = None  # of the GPU that tensors are on; None: as they are
    _held: tuple[dict[str, Tensor], dict[str, Tensor]]  # buckets that wait, and where their means go

    def _begin_auto(self, auto: Auto | Adaptive | None) -> None:
        """Begins to choose, if that is wanted. All ranks call it, while nothing is exchanged."""
        self._held = {}, {}
        if auto is None:
            return
        try:
            if isinstance(auto, Adaptive):
                self._driver = Adapting(self._session, auto, self._site())
            else:
                self._driver = Driver(
                    self._session, auto, optimizer=self._settings(), site=self._site(), clock=self._clock,
                    streams=self._streams,
                )  # fmt: skip
            self._driver.begin()
        except BaseException as error:
            self._session.close(error)
            raise
        self._session.logs.more = self._log_values

    def _site(self) -> Site:
        """The tensors that are exchanged here, and how."""
        return Site.of(self._session)

    def _log_values(self) -> dict[str, float]:
        return {} if self._driver is None else self._driver.values

    # ---- steps ------------------------------------------------------------------------------------------------------
    def _comes(self, names: Iterable[str]) -> None:
        """A bucket of these tensors has come; called at once."""
        if self._driver is not None:
            self._driver.comes(list(names))

    def _exchange_bucket(
        self,
        gradients: dict[str, Tensor],
        last: bool,
        into: Mapping[str, Tensor] | None = None,
        flags: Tensor | None = None,
    ) -> Collection[str]:
        """Exchanges this bucket, and those that have waited for it; the names of what is exchanged. Buckets come in order.

        Args:
            gradients: of the bucket.
            last: whether it ends the step.
            into: where means go; None: the gradients themselves.
            flags: of the last bucket; see :meth:`grace.run.steps.Steps.step`.
        """
        driver, into = self._driver, gradients if into is None else into
        if driver is None:
            return self._steps.step(gradients, last=last, into=into, flags=flags)
        given, targets = self._held
        given.update(gradients)
        targets.update(into)
        if driver.holds(list(gradients), gradients, last):
            return ()
        self._held = {}, {}
        start = self._clock()
        try:
            return self._steps.step(given, last=last, into=targets, flags=flags)
        finally:
            if self._session.error is None:
                driver.exchanged(self._clock() - start)
            if last and self._session.error is None:
                self._end_step(driver)

    def _end_step(self, driver: Driver | Adapting) -> None:
        """Applies the choice for the next step; an error there ends the session, as one in an exchange does."""
        try:
            driver.ended()
        except BaseException as error:
            self._session.close(error)
            raise

    def _exchange_in_turn(self, buckets: Sequence[Collection[str]], tensors: Mapping[str, Tensor]) -> None:
        """A step of tensors, of any shape, that have come at once: they are replaced by their means, one bucket after the
        other.
        """
        spoiled: NonFiniteError | None = None
        for k, names in enumerate(buckets):
            bucket = {name: tensors[name] for name in names}
            self._comes(bucket)
            try:
                self._exchange_bucket(bucket, k == len(buckets) - 1)
            except NonFiniteError as error:  # on all ranks; the rest of the step is skipped, and ended
                spoiled = error
        if spoiled is not None:
            raise spoiled

    def _irregular(self) -> None:
        """The step that ends with the coming exchange is no measure of others."""
        if isinstance(self._driver, Driver):
            self._driver.irregular()

    def _end_run(self) -> None:
        """There are no more steps: says so, if they were too few."""
        if isinstance(self._driver, Driver):
            self._driver.end_run()

    def _began(self) -> None:
        """A step begins, whose buckets are exchanged one by one: nothing waits for a later one."""
        if isinstance(self._driver, Driver):
            self._driver.began()

    @contextlib.contextmanager
    def _bucket_alone(self, names: Iterable[str], gradients: Callable[[], Mapping[str, Tensor]]) -> Iterator[None]:
        """The exchange of a bucket of these tensors, which takes place within; for a :class:`Site` that holds none.
        ``gradients`` gives them, of any shape, where they are measured.
        """
        if self._driver is not None:
            self._driver.holds(list(names), gradients() if self._driver.measures else {}, last=False)
        start = self._clock()
        yield
        if self._driver is not None:
            self._driver.exchanged(self._clock() - start)

    @contextlib.contextmanager
    def _while_it_waits(self) -> Iterator[bool]:
        """Around what hands a bucket over: whether the model is to wait there until it is exchanged."""
        waits = isinstance(self._driver, Driver) and self._driver.waits
        start = self._clock()
        yield waits
        if waits:
            assert isinstance(self._driver, Driver)
            self._driver.waited(self._clock() - start)

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def chooses(self) -> bool:
        """True if the method is, or was, chosen by ``auto``."""
        return self._driver is not None

    def explain(self) -> Explanation | Adapted:
        """The choices of ``auto`` so far and their reasons, in words and numbers: for each bucket the method, what was
        predicted, what was measured, and what was rejected. It prints as text; ``explain().save(FILE)`` is for
        ``grace explain --run FILE``.

        Raises:
            ConfigurationError: the method was not "auto".
        """
        if self._driver is None:
            raise ConfigurationError(f'explain: the method was given, {self._session.policy}; legal where it is "auto"')
        return self._driver.explain()

    def switch(self, method: Policy | Method[Any] | Auto | Adaptive | str) -> None:
        """Uses another method or policy from the next step on, and ends ``auto``; ``switch("auto")`` begins it again, which
        takes some seconds. What memories owe is added to what is exchanged next.

        Raises:
            FingerprintMismatch: the ranks switch to different methods; they then go on as before.
            GraceError: the handle is detached.
        """
        auto = wanted(method)
        if auto is not None:
            self._session.change_knobs(auto=str(auto))
            self._begin_auto(auto)
            return
        assert not isinstance(method, Auto | Adaptive)
        super().switch(method)
        if self._driver is not None:
            self._driver.end(f"the user has switched to {self._session.policy}")

    # ---- checkpoints ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """State that the next step depends on. Each rank saves and loads its own. Of a trial that goes on, nothing is kept:
        what its methods owe is owed in instalments.

        Raises:
            StateError: ``torch.distributed.checkpoint`` asks for it.
        """
        if self._driver is None or not self._driver.active:
            return super().state_dict()
        refuse_dcp()
        return OwnState({**self._session.state_dict(), "auto": self._driver.state_dict()})

    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped. Under ``auto`` a state of any method is loaded: that method is used until a better
        one is found. A fixed method loads what ``auto`` has saved, and takes its memories over.

        Raises:
            StateError: one does not fit, or they do not belong together; on every rank. Nothing has changed then.
        """
        with self._going_on(saved, states=True) as policy:
            super().load_state_dict(saved if policy is None else {**saved, "policy": repr(policy)})

    @property
    def _chooser(self) -> Chooser:
        return Chooser(self._save_choice, self._going_on)

    def _save_choice(self) -> dict[str, Any]:
        """The part of a checkpoint that describes the choice, beside the methods, which are the session's."""
        if self._driver is None or not self._driver.active:
            return {}
        return {"auto": {key: value for key, value in self._driver.state_dict().items() if key != "methods"}}

    @contextlib.contextmanager
    def _going_on(self, saved: Any, states: bool) -> Iterator[Policy | None]:
        """Around what loads a state or a checkpoint: see :class:`grace.run.checkpoint.Chooser`."""
        choosing = self._driver is not None and self._driver.active
        policy, why = None, ""
        if choosing or (states and isinstance(saved, Mapping) and "auto" in saved):
            policy, why = self._policy_of(saved)
        if policy is None:
            try:
                yield None
            except StateError as error:
                if not why:
                    raise
                raise StateError(f"{error}; {why}") from error
            return
        worker, was = self._session.worker, self._session.worker.policy
        worker.policy = policy
        try:
            yield policy
        finally:
            worker.policy = was
        if choosing:
            assert self._driver is not None
            measured = saved.get("auto", {}).get("fingerprint")
            self._driver.load(policy, measured if isinstance(measured, str) else None)
        elif was.timeless:
            self._session.offer([policy, was], 1)

    def _policy_of(self, saved: Any) -> tuple[Policy | None, str]:
        """A rule for each tensor, from a state or a checkpoint of any method. None: it tells of none that can be used here;
        and why, if it names some.
        """
        try:
            methods = read_methods({**saved, **saved.get("auto", {})})
        except (StateError, TypeError, AttributeError):
            return None, ""
        try:
            rules = [Rule(glob.escape(name), read_method(text)) for name, text in methods.items()]
            return self._site().resolve(Policy([*rules, Rule("*", "none")], strict=False)), ""
        except ConfigurationError as error:
            if isinstance(self._driver, Driver):
                self._driver.history.unusable(str(error))
            return None, str(error)
