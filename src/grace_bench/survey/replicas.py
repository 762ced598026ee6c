"""A run of the survey by an algorithm: each worker trains a replica of its own, in a thread of this process."""

from __future__ import annotations

import copy
import math
import threading
import warnings

import torch

from grace.errors import OptimizerWarning
from grace.run.threads import Threads, ThreadTransport, run_threads
from grace_bench.runs.algorithms import Algorithm
from grace_bench.runs.config import RunConfig
from grace_bench.runs.results import Point
from grace_bench.runs.training import MOST, Training, add_decay, evaluation_steps
from grace_bench.survey.together import Learned, Progress


class Replicas(Training):
    """A run without processes: outer loops, optimizers and gossip exchange over a network of threads, by the code that runs
    over real ones. Workers compute one after the other, since torch has one stream of random numbers in a process.
    """

    def __init__(self, config: RunConfig, on_progress: Progress):
        super().__init__(config, 0, on_progress)
        self._computing = threading.Lock()

    def learn(self) -> Learned:
        """Trains and evaluates; what worker 0 has seen.

        Raises:
            ConfigurationError: an algorithm that has another network than Grace's.
        """
        exchanges, meetings = Threads(self.config.workers), Threads(self.config.workers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizerWarning)  # the optimizer gets what the algorithm needs
            return run_threads(self._work, exchanges, meetings)[0]

    def _work(self, exchanges: ThreadTransport, meetings: ThreadTransport) -> Learned:
        """The work of one worker. ``exchanges`` is the algorithm's, whose lane may use it at any time."""
        worker = copy.copy(self)
        worker.rank = exchanges.rank
        return worker._learn(exchanges, meetings)

    def _learn(self, exchanges: ThreadTransport, meetings: ThreadTransport) -> Learned:
        config, task, rank = self.config, self.task, self.rank
        with self._computing:
            torch.manual_seed(config.seed)
            model = task.model()
            random = torch.Generator().manual_seed(config.seed * MOST + rank + 1).get_state()
        add_decay(task, model)
        self.scale, changes = self._adjust_optimizer(model)
        assert isinstance(self.algorithm, Algorithm)
        trained = self.algorithm.connect(model, config.seed, config.lr, exchanges)
        optimizer = trained.join(self._make_optimizer(model, changes.momentum))
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        batches = task.batches(rank, config.workers, config.seed)
        marks, curve = evaluation_steps(self.steps, config.evaluations), list[Point]()
        self._note(curve, trained, 0, 0.0, None)
        model.train()
        for step in range(self.steps):
            batch = next(batches)
            with self._computing:
                optimizer.zero_grad()
                torch.set_rng_state(random)
                loss = task.loss(trained.model, batch)
                torch.autograd.backward(loss)
                random = torch.get_rng_state()
            losses = meetings.all_gather_text(float(loss.item()).hex(), seconds=math.inf)
            if not all(math.isfinite(float.fromhex(text)) for text in losses):
                return Learned(curve, step, changes, parameters, trained.count().rounds)
            trained.average_gradients()
            self._apply(trained.model, optimizer, step)
            if step + 1 == self.steps:
                trained.end()
            trained.step()
            if rank == 0:
                self.on_progress(step + 1, self.steps)
            if step + 1 in marks:
                self._note(curve, trained, step + 1, 0.0, loss.item())
        rounds = trained.count().rounds
        trained.close()
        diverged = None if rank or curve[-1].metrics[task.metric] is not None else self.steps
        return Learned(curve, diverged, changes, parameters, rounds)
