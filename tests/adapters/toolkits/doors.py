"""A rank: every method through doors of one toolkit, over several transports; see ``test_same_answer.py``.

As ``doors.py FOLDER TRANSPORTS DOORS``, with commas between; ``mixed`` is another toolkit on each rank. It writes the means of
each door and transport to a file in FOLDER.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["JAX_PLATFORMS"] = "cpu"
if not {"tensorflow", "mixed"} & set(sys.argv[3].split(",")):  # Keras would import it
    sys.modules["tensorflow"] = None  # type: ignore[assignment]

import torch
from torch import Tensor, nn

import grace
from tests.adapters.toolkits.all_methods import SHAPES, STEPS, Means, Step, gradients, policy, through_handover


def through_ddp(transport: str) -> Step:
    model = nn.parallel.DistributedDataParallel(_Given())
    grace.attach(model, policy(), transport=transport)
    return lambda given: _backward(model, given)


def through_optimizer(transport: str) -> Step:
    model = _Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = grace.DistributedOptimizer(optimizer, policy(), model.named_parameters(), transport=transport)

    def step(given: Mapping[str, Tensor]) -> Means:
        optimizer.zero_grad()
        _backward(model, given, wait=False)
        optimizer.synchronize()
        means = _read_gradients(model)
        with optimizer.skip_synchronize():
            optimizer.step()
        return means

    return step


class _Given(nn.Module):
    """The gradients of its loss are what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, given: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([(p * given[name]).sum() for name, p in self.named_parameters()]).sum()


def _backward(model: nn.Module, given: Mapping[str, Tensor], *, wait: bool = True) -> Means:
    if wait:
        model.zero_grad()
    model(given).backward()
    return _read_gradients(model) if wait else {}


def _read_gradients(model: nn.Module) -> Means:
    return {name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def through_tensorflow(transport: str) -> Step:
    import tensorflow as tf

    import grace.tensorflow as gt
    from grace.tensorflow.calls import to_tensorflow, to_torch

    variables = [tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()]
    exchange = gt.Gradients(variables, policy(), transport=transport)
    mean = tf.function(lambda *given: exchange.mean(given))

    def step(given: Mapping[str, Tensor]) -> Means:
        means = mean(*[to_tensorflow(x) for x in given.values()])
        return {name: to_torch(x).clone() for name, x in zip(SHAPES, means, strict=True)}

    return step


def through_jax(transport: str) -> Step:
    import jax

    import grace.jax as gj

    like = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()}
    mean, _ = gj.compressed_mean_on_host(policy(), like, transport=transport)
    update, state = jax.jit(mean.update), mean.init(like)

    def step(given: Mapping[str, Tensor]) -> Means:
        nonlocal state
        means, state = update({name: x.numpy() for name, x in given.items()}, state)
        return {name: torch.tensor(means[name].__array__()) for name in SHAPES}

    return step


def through_keras(transport: str) -> Step:
    import keras

    import grace.keras

    class Bare(keras.layers.Layer):  # type: ignore[misc]
        def build(self, _: Any) -> None:
            for name, shape in SHAPES.items():
                layer, _, own = name.partition("/")
                if layer == self.name:
                    setattr(self, own, self.add_weight(shape=shape, initializer="zeros", name=own))

        def call(self, x: Any) -> Any:
            return x

    class Reveal(keras.optimizers.Optimizer):  # type: ignore[misc]
        """Variables become the means."""

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign(variable, gradient)

    layers = [Bare(name=name) for name in dict.fromkeys(name.partition("/")[0] for name in SHAPES)]
    model = keras.Sequential([keras.layers.Input((1,)), *layers])
    model.compile(Reveal(learning_rate=1.0), "mse")
    grace.keras.attach(model, policy(), transport=transport)
    variables = model.trainable_variables

    def step(given: Mapping[str, Tensor]) -> Means:
        own = [keras.ops.convert_to_tensor(x.numpy()) for x in given.values()]
        with torch.no_grad():
            model.optimizer.apply(own, variables)
        means = [torch.tensor(keras.ops.convert_to_numpy(v.value)) for v in variables]
        return dict(zip(SHAPES, means, strict=True))

    return step


def through_one_that_rounds(transport: str) -> Step:
    """A mutant."""
    step = through_handover(transport)
    return lambda given: step({name: x.bfloat16().float() for name, x in given.items()})


def through_another_on_each_rank(transport: str) -> Step:
    rank = torch.distributed.get_rank()
    return (through_tensorflow, through_jax, through_handover)[rank](transport)


def through_cases_of_jax(transport: str) -> Step:
    """No door: what JAX users do, beside the means, over MPI. Over gloo it has a launch of its own."""
    if transport == "mpi":
        from tests.adapters import jax_cases

        os.environ["GRACE_TRANSPORT"] = transport
        for case in (
            jax_cases.scan_while_and_cond, jax_cases.inf_on_one_rank_is_seen_by_all_and_changes_no_memory,
            jax_cases.an_error_for_numbers_that_are_not_finite_lets_the_next_step_go_on,
            jax_cases.parameters_are_broadcast, jax_cases.ranks_that_differ_say_so,
            jax_cases.another_structure_is_an_error_on_all,
        ):  # fmt: skip
            case(torch.distributed.get_rank())
        del os.environ["GRACE_TRANSPORT"]
    return lambda given: {}


THROUGH = {
    "ddp": through_ddp, "optimizer": through_optimizer, "tensorflow": through_tensorflow, "jax": through_jax,
    "keras": through_keras, "mixed": through_another_on_each_rank, "rounds": through_one_that_rounds,
    "cases": through_cases_of_jax,
}  # fmt: skip


def main(folder: Path, transports: list[str], doors: list[str]) -> None:
    torch.set_num_threads(1)
    if "horovod" in transports:  # under horovodrun
        import horovod.torch

        horovod.torch.init()
        os.environ.update(RANK=str(horovod.torch.rank()), WORLD_SIZE=str(horovod.torch.size()))
    grace.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    for door in doors:
        for transport in transports:
            result: list[Means] | str
            try:
                step = THROUGH[door](transport)
                result = [step(gradients(rank, number)) for number in range(STEPS)]
            except Exception:
                result = traceback.format_exc()
            label = f"{door}_{os.environ['KERAS_BACKEND']}" if door == "keras" else door
            torch.save(result, folder / f"{label}-{transport}-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(","))
