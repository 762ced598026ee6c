"""GRACE's ``Communicator``: ``step``, ``send_step`` and ``receive_step`` on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

import grace
from grace.contract.method import Method
from grace.errors import ConfigurationError
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.agreement import SECONDS
from grace.transports.base import Transport, Wrapper
from grace_dl import network, protocol
from grace_dl.parts import Compressor, KnownMemory, Memory


class Communicator:
    """Moves compressed tensors. GRACE's own communicators have a ``kind``; one of yours overrides :meth:`send_receive`, or
    :meth:`async_send` and :meth:`wait_receive`, as it did for GRACE.

    Args:
        compressor, memory: GRACE's own or yours.
        world_size: the number of workers; the job's by default.

    Raises:
        ConfigurationError: parts that cannot work together, and why.
        ValueError: a ``world_size`` that is not the job's.
    """

    known: ClassVar[bool] = False  # GRACE's own
    kind: ClassVar[str] = ""
    text: ClassVar[str] = ""  # its string in Grace

    def __init__(self, compressor: Any, memory: Any, world_size: int | None = None):
        for part, base in ((compressor, Compressor), (memory, Memory)):
            if not isinstance(part, base):
                what = f"the class {part.__name__}; make one, with ()" if isinstance(part, type) else repr(part)
                raise ConfigurationError(f"{type(self).__name__} takes a GRACE {base.__name__}, got {what}")
        self.compressor, self.memory = compressor, memory
        self.world_size = world_size
        self._steps: dict[str, Steps] = {}  # by tensor; those that came together share one
        self._spelled: Method[Any] | None = None
        self._pending: dict[str, Tensor] = {}
        self._compared: set[str] = set()
        if self.method is None:
            self._check_parts()
        self._check_world(network.find_world())

    # ---- the parts ----------------------------------------------------------------------------------------------------
    @property
    def method(self) -> Method[Any] | None:
        """The Grace method that the three parts spell, as their knobs are now; None where one of them is yours.

        Raises:
            ConfigurationError: they cannot work together, and why.
        """
        spelled = self.spell()
        return None if spelled is None else grace.method(spelled)

    @property
    def policy(self) -> Policy | None:
        """:attr:`method` for all tensors, small ones too, as GRACE did; None where a part is yours."""
        method = self.method
        return None if method is None else Policy([("*", method)])

    def spell(self) -> str | None:
        """The string that makes :attr:`method`."""
        parts = (self.compressor, self.memory, self)
        if not all(vars(type(part)).get("known", False) for part in parts):
            return None
        memory = self.memory.spell()
        head, _, knobs = self.compressor.spell().partition(":")
        chosen = [knobs] if knobs else []
        if head == "powersgd":  # the network sums, whatever the communicator
            if (rank := getattr(self.memory, "compress_rank", 1)) != 1:
                chosen = [f"rank={rank}"]
        else:
            chosen.append(f"communicator={self.text}")
        if head == "signum":  # its momentum is its memory
            if memory != "none":
                raise ConfigurationError(
                    f"{self.memory!r} around Signum: signs without a scale have no error to feed back"
                )
        else:
            chosen.append(f"memory={memory}")
        return f"{head}:{','.join(chosen)}"

    def _check_parts(self) -> None:
        """Refuses what cannot work with a part of the user's."""
        if self.kind == "all_to_all":
            raise ConfigurationError(
                f"AllToAll cuts a tensor and compresses the parts again, which only GRACE's own compressors and memories can; "
                f"with {type(self.compressor).__name__} and {type(self.memory).__name__} take Allgather"
            )
        if isinstance(self.memory, KnownMemory):
            self.memory.require_protocol()

    def _check_world(self, world: int | None) -> None:
        if world is None:
            return
        if self.world_size not in (None, world):
            raise ValueError(f"world_size={self.world_size}, but {world} workers take part; give that, or leave it out")
        self.world_size = world

    @property
    def transport(self) -> Transport:
        """Between the workers of the job."""
        shared = network.shared_transport()
        self._check_world(shared.world)
        return shared

    # ---- what scripts call --------------------------------------------------------------------------------------------
    def step(self, tensor: Any, name: str) -> Any:
        """Exchanges one tensor: the mean over the workers, a new tensor. All ranks call it alike, in the same order.

        Raises:
            AgreementError: ranks give tensors of other names, shapes or types.
        """
        if self.method is not None:
            return self._exchange({name: tensor})[name]
        if self._sends_alone:
            return self.receive_step(*self._begin(tensor, name))
        tensors, ctx = self._begin_protocol(tensor, name)
        return self.send_receive(tensors, name, ctx)

    def send_step(self, tensor: Any, name: str) -> tuple[Any, Any]:
        """Notes a tensor; the first :meth:`receive_step` exchanges all that were noted, sorted by name, so that their order
        cannot differ between ranks. A communicator of yours sends at once, as it did for GRACE.
        """
        if self._sends_alone:
            return self._begin(tensor, name)
        if name in self._pending:
            raise ConfigurationError(f"send_step: {name!r} is noted already; receive it first")
        self._pending[name] = tensor
        return name, self._pending

    def receive_step(self, handles: Any, ctx: Any) -> Any:
        """The mean of the tensor that :meth:`send_step` returned these for."""
        if self._sends_alone:
            return self.wait_receive(handles, ctx)
        if ctx is self._pending:
            noted, self._pending = self._pending, {}
            ordered = {name: noted[name] for name in sorted(noted)}
            if self.method is not None:
                noted.update(self._exchange(ordered))
            else:
                noted.update({name: self.step(x, name) for name, x in ordered.items()})
        return ctx.pop(handles)

    # ---- Grace's methods ----------------------------------------------------------------------------------------------
    def _exchange(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        method, policy = self.method, self.policy
        assert policy is not None
        if method != self._spelled:  # a knob was changed while training, on all ranks
            for steps in self._in_use():
                steps.session.switch(policy)
            self._spelled = method
        new = {name: x for name, x in tensors.items() if name not in self._steps}
        if new:
            made = Steps(Session(new, policy, Lasting(self.transport)), absent="Send it in every step")
            self._steps.update(dict.fromkeys(new, made))
        means: dict[str, Tensor] = {}
        for steps in dict.fromkeys(self._steps[name] for name in tensors):
            own = {name: x.detach().clone() for name, x in tensors.items() if self._steps[name] is steps}
            means.update({name: mean.clone() for name, mean in steps.step(own).items()})
        return means

    def _in_use(self) -> list[Steps]:
        return list(dict.fromkeys(self._steps.values()))

    @property
    def stats(self) -> list[Any]:
        """Statistics for each set of tensors that are exchanged together."""
        return [steps.session.stats for steps in self._in_use()]

    # ---- GRACE's protocol ---------------------------------------------------------------------------------------------
    @property
    def _sends_alone(self) -> bool:
        """True if it is a user's communicator that sends in its own way, in two halves."""
        return type(self).async_send is not Communicator.async_send

    def _begin(self, tensor: Any, name: str) -> tuple[Any, Any]:
        tensors, ctx = self._begin_protocol(tensor, name)
        return self.async_send(tensors, name), ctx

    def _begin_protocol(self, tensor: Any, name: str) -> tuple[Any, Any]:
        self.compare(name, tensor.shape, tensor.dtype)
        tensor = self.memory.compensate(tensor.detach().clone(), name)
        tensors, ctx = self.compressor.compress(tensor, name)
        self.memory.update(tensor, name, self.compressor, tensors, ctx)
        return tensors, ctx

    def compare(self, name: str, shape: Sequence[int], dtype: object) -> None:
        """Before a tensor's first exchange, all ranks compare which tensor it is."""
        if name not in self._compared:
            protocol.compare(self.transport, f"{name!r} {tuple(shape)} {str(dtype).rpartition('.')[2]}", SECONDS)
            self._compared.add(name)

    def send_receive(self, tensors: Any, name: str, ctx: Any) -> Any:
        """Sends this worker's tensors, and averages everyone's."""
        if not self.kind:
            raise NotImplementedError(f"{type(self).__name__} lacks send_receive(tensors, name, ctx)")
        transport = self.transport
        exchange = protocol.send_receive(self.kind, self.compressor, list(tensors), ctx, transport.world)
        try:
            return drive(exchange, transport)
        except BaseException as error:
            transport.close(error)  # the others hear of it
            raise

    def async_send(self, tensors: Any, name: str) -> Any:
        """For communicators of your own: begins to send, and returns what :meth:`wait_receive` needs."""
        raise NotImplementedError(f"{type(self).__name__} lacks async_send(tensors, name)")

    def wait_receive(self, handles: Any, ctx: Any) -> Any:
        """For communicators of your own: waits for what :meth:`async_send` began, and averages."""
        raise NotImplementedError(f"{type(self).__name__} lacks wait_receive(handles, ctx)")


class Lasting(Wrapper):
    """A transport that others use too: only an error ends it."""

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`."""
        if error is not None:
            self.transport.close(error)
