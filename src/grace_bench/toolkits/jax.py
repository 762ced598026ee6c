"""A worker's model in Keras on JAX: one jitted step, with Grace's mean in it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from grace.jax import compressed_mean_on_host
from grace.run.options import Granularity
from grace.transports.torch_distributed import TorchDistributed
from grace_bench.toolkits.keras import KerasReplica


class JaxReplica(KerasReplica):
    """See :class:`~grace_bench.toolkits.replica.Replica`."""

    backend = "jax"
    _mean: Any = None

    def _connect(self, method: str, granularity: Granularity, seed: int) -> None:
        rates = jnp.asarray(self.recipe.rates, jnp.float32)
        values = dict(zip(self.names, (v.value for v in self.variables), strict=True))
        self._mean, self.handle = compressed_mean_on_host(
            method, values, transport=TorchDistributed(), learning_rate=lambda count: rates[count], seed=seed
        )
        self._exchanged = self._mean.init(values)

    def _compile(self, inputs: Any, target: Any, state: Any) -> Any:
        self._compiled = jax.jit(self._step).lower(self._values(), inputs, target, state).compile()
        return self._run

    def _run(self, inputs: Any, target: Any, state: Any) -> tuple[Any, Any]:
        values, loss, after = jax.block_until_ready(self._compiled(self._values(), inputs, target, state))
        *lists, self._exchanged = values
        for variables, assigned in zip(self._variables(), lists, strict=True):
            for variable, value in zip(variables, assigned, strict=True):
                variable.assign(value)
        return loss, after

    def _variables(self) -> tuple[Any, Any, Any]:
        """The variables that a step changes, in lists: trained, statistics and random numbers, the optimizer's."""
        return self.variables, self.model.non_trainable_variables, self.optimizer.variables

    def _values(self) -> Any:
        return [*([v.value for v in variables] for variables in self._variables()), getattr(self, "_exchanged", None)]

    def _step(self, values: Any, inputs: Any, target: Any, state: Any) -> tuple[Any, Any, Any]:
        trained, kept, optimizer, exchanged = values

        def loss_of(trained: Any) -> tuple[Any, Any]:
            if state is None:
                call = [inputs[0] if len(inputs) == 1 else inputs]
                out, kept_after = self.model.stateless_call(trained, kept, *call, training=True)
                return self.loss_of(out, target), (None, kept_after)
            (out, after), kept_after = self.model.stateless_call(trained, kept, *inputs, state, training=True)
            return self.loss_of(out, target), (after, kept_after)

        (loss, (after, kept)), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        gradients = self._decayed(gradients, trained)
        if self._mean is not None:
            named = dict(zip(self.names, gradients, strict=True))
            named, exchanged = self._mean.update(named, exchanged)
            gradients = [named[name] for name in self.names]
        trained, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trained)
        return [trained, kept, optimizer, exchanged], loss, after
