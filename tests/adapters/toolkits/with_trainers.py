"""Cases of one library's trainer, named by the first argument; see ``running.py``. Each runs on two ranks."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

os.environ.update(
    LOCAL_RANK=os.environ["RANK"], LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"], TORCHELASTIC_RUN_ID="test",
    HF_HUB_OFFLINE="1", ACCELERATE_USE_CPU="true", CUDA_VISIBLE_DEVICES="",
)  # fmt: skip
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import grace
from tests.adapters.toolkits.running import raises, serve

LIBRARY = sys.argv[1]
FOLDER = Path(os.environ["FOLDER"])
METHOD = "topk:ratio=0.02"
STEPS = 6  # the checkpoint is that of the third
made = torch.Generator().manual_seed(1)
X = torch.randn(48, 32, generator=made)
DATA = TensorDataset(X, X[:, :4].argmax(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def check_alike(x: Tensor) -> None:
    """The same bits on both ranks."""
    both = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(both, x.contiguous())
    assert all(torch.equal(both[0], other) for other in both)


def mean_debts(handle: Any) -> dict[str, Tensor]:
    """Debts of the workers to the model, on average."""
    debts = {name: x.clone() for name, x in sorted(handle._session.worker.state.debts().items())}
    for x in debts.values():
        dist.all_reduce(x)
        x /= dist.get_world_size()
    return {name: x for name, x in debts.items() if x.any()}


def check_debts(then: dict[str, Tensor], now: dict[str, Tensor]) -> None:
    assert then
    assert then.keys() == now.keys()
    for name, x in then.items():
        torch.testing.assert_close(x, now[name])


def check_lines(lines: list[dict[str, float]], key: str) -> None:
    """Logged lines of steps have ratios of top-k, which a step without compression does not have."""
    ratios = [line[key] for line in lines if key in line]
    assert ratios, f"no {key} in {lines}"
    assert all(ratio > 2 for ratio in ratios), ratios


# ---- Lightning ------------------------------------------------------------------------------------------------------
if LIBRARY == "lightning":
    import lightning.pytorch as L  # noqa: N812
    import pytorch_lightning
    from lightning.pytorch.loggers import CSVLogger

    from grace.lightning import Compression

    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.2)

        def train_dataloader(self) -> Any:
            """An epoch has one step, and all have the same data: Lightning shuffles anew after a stop."""
            rows = range(8 * dist.get_rank(), 8 * dist.get_rank() + 8)
            return torch.utils.data.DataLoader(torch.utils.data.Subset(DATA, rows), 8)

    class Noting(L.Callback):
        """Notes debts when training begins and after each step, and what callbacks are told."""

        told: ClassVar[set[str]] = set()

        def __init__(self, compression: Any):
            self.compression, self.debts = compression, {}

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            self.debts[trainer.global_step] = mean_debts(self.compression.handle)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            self.debts[trainer.global_step] = mean_debts(self.compression.handle)
            self.told.update(trainer.callback_metrics)

        def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == STEPS // 2 and not trainer.ckpt_path:
                trainer.save_checkpoint(FOLDER / f"{self.compression._memories}.ckpt")

    def fit(
        compression: Any,
        ckpt_path: Any = None,
        logger: Any = False,
        package: Any = L,
        model: Any = None,
        **options: Any,
    ) -> tuple[Tensor, dict[int, Any]]:
        noting = Noting(compression)
        options = {"strategy": "ddp", "callbacks": [compression, noting], "max_steps": STEPS, **options}
        trainer = package.Trainer(
            accelerator="cpu", devices=2, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, logger=logger, log_every_n_steps=2, default_root_dir=FOLDER,
            use_distributed_sampler=False, **options,
        )  # fmt: skip
        model = model or Module()
        trainer.fit(model, ckpt_path=ckpt_path)
        return weights(model), noting.debts

    def trains_logs_and_resumes(rank: int, world: int) -> None:
        logger = CSVLogger(FOLDER, name="csv")
        straight, debts = fit(Compression(METHOD, errors_every=2), logger=logger)
        check_alike(straight)
        if rank == 0:
            logger.save()
            text = next(FOLDER.glob("csv/*/metrics.csv")).read_text()
            header, *lines = [line.split(",") for line in text.split()]
            check_lines(
                [{k: float(v) for k, v in zip(header, line, strict=True) if v} for line in lines], "grace/ratio"
            )
            assert "grace/error/module.net.0.weight" in header or "grace/error/net.0.weight" in header, header
            assert {"grace/ratio", "grace/sent_bytes"} <= Noting.told, Noting.told
        dist.barrier()
        resumed, again = fit(Compression(METHOD), FOLDER / "mean.ckpt")
        check_debts(debts[3], again[3])
        check_alike(resumed)

    def resumes_with_the_same_bits(rank: int, world: int) -> None:
        straight, _ = fit(Compression(METHOD, memories="all"))
        resumed, _ = fit(Compression(METHOD, memories="all"), FOLDER / "all.ckpt")
        assert torch.equal(straight, resumed)

        class Forgetful(Compression):
            """A callback without memories in its checkpoint."""

            def load_state_dict(self, state_dict: Any) -> None:
                pass

            @property
            def state_key(self) -> str:
                return "Compression"

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other, _ = fit(Forgetful(METHOD), FOLDER / "all.ckpt")
        assert not torch.equal(straight, other)
        assert rank or any("holds no memories of Grace" in str(warning.message) for warning in caught)

    def a_second_fit_goes_on(rank: int, world: int) -> None:
        compression, model = Compression(METHOD), Module()
        _, debts = fit(compression, model=model)
        trained, again = fit(compression, model=model)
        check_debts(debts[STEPS], again[0])
        check_alike(trained)

    def what_is_skipped_owes_nothing(rank: int, world: int) -> None:
        """An ``optimizer_step`` that only calls its closure, in every other batch: Lightning's way to skip a step. What it has
        left is cleared in the closure of the next step.
        """

        class Skipping(Module):
            skips = True

            def training_step(self, batch: Any, index: int) -> Tensor:
                return super().training_step(batch, index) * (-10 if self.skips else 1)

            def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Any = None) -> None:
                if self.skips:
                    closure()
                else:
                    super().optimizer_step(epoch, index, optimizer, closure)
                self.skips = not self.skips

        straight, _ = fit(Compression(METHOD))
        compression = Compression(METHOD)
        skipped, _ = fit(compression, model=Skipping(), max_steps=2 * STEPS, callbacks=[compression])
        assert compression.handle.stats.dropped == STEPS, compression.handle.stats.dropped
        assert torch.equal(skipped, straight)

    def another_package_resumes_too(rank: int, world: int) -> None:
        """``pytorch_lightning`` knows nothing of ``lightning``: classes of the one are not those of the other."""

        class Other(pytorch_lightning.LightningModule):
            train_dataloader, configure_optimizers = Module.train_dataloader, Module.configure_optimizers
            training_step = Module.training_step

            def __init__(self) -> None:
                super().__init__()
                self.net = network()

        first = fit(Compression(METHOD), package=pytorch_lightning, model=Other())
        again = fit(Compression(METHOD), FOLDER / "mean.ckpt", package=pytorch_lightning, model=Other())
        check_debts(first[1][3], again[1][3])
        check_alike(again[0])

    def another_strategy_is_refused(rank: int, world: int) -> None:
        class Plain(L.strategies.DDPStrategy):
            def configure_ddp(self) -> None:
                pass

        with raises(grace.errors.ConfigurationError, "strategy='ddp'", "Plain"):
            fit(Compression(METHOD), strategy=Plain())


# ---- transformers ---------------------------------------------------------------------------------------------------
if LIBRARY == "transformers":
    import transformers

    from grace.transformers import FILE, CompressionCallback

    class Examples(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(DATA)

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": DATA[i][0], "labels": DATA[i][1]}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            out = self.net(x)
            return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}

    class Noting2(transformers.TrainerCallback):
        def __init__(self, compression: Any):
            self.compression, self.debts = compression, {}

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.debts[state.global_step] = mean_debts(self.compression.handle)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.debts[state.global_step] = mean_debts(self.compression.handle)

    def train(
        compression: Any, folder: str, resume: Any = None, kind: Any = transformers.Trainer
    ) -> tuple[Tensor, Any, Any]:
        noting, model = Noting2(compression), Model()
        args = transformers.TrainingArguments(
            str(FOLDER / folder), max_steps=STEPS, per_device_train_batch_size=4, use_cpu=True, ddp_backend="gloo",
            report_to=[], logging_steps=2, save_steps=3, disable_tqdm=True, learning_rate=0.1, optim="sgd",
            lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = kind(model=model, args=args, train_dataset=Examples(), callbacks=[compression, noting])
        trainer.train(resume_from_checkpoint=resume)
        assert compression.handle is None
        return weights(model), noting.debts, trainer

    def trains_logs_and_resumes(rank: int, world: int) -> None:
        straight, debts, trainer = train(CompressionCallback(METHOD, errors_every=2), "mean")
        check_alike(straight)
        lines = trainer.state.log_history
        check_lines(lines, "grace_ratio")
        assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6]
        assert any("grace_error/net.0.weight" in line for line in lines)
        assert (FOLDER / "mean/checkpoint-3" / FILE).exists()
        again = train(CompressionCallback(METHOD), "elsewhere", str(FOLDER / "mean/checkpoint-3"))
        check_debts(debts[3], again[1][3])
        check_alike(again[0])

    def resumes_with_the_same_bits(rank: int, world: int) -> None:
        straight, _, _ = train(CompressionCallback(METHOD, memories="all"), "all")
        checkpoint = FOLDER / "all/checkpoint-3"
        resumed, _, _ = train(CompressionCallback(METHOD, memories="all"), "all2", str(checkpoint))
        assert torch.equal(straight, resumed)
        dist.barrier()
        if rank == 0:
            (checkpoint / FILE).unlink()
        dist.barrier()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other, _, _ = train(CompressionCallback(METHOD), "all3", str(checkpoint))
        assert not torch.equal(straight, other)
        assert rank or any("holds no memories of Grace" in str(warning.message) for warning in caught)

    def what_is_dropped_owes_nothing(rank: int, world: int) -> None:
        """An attack before each step: a backward pass whose gradients are cleared."""
        counts = set()

        class Attacking(transformers.Trainer):  # type: ignore[misc]
            def training_step(self, model: Any, inputs: Any, *more: Any) -> Tensor:
                given = self._prepare_inputs(dict(inputs))
                self.accelerator.backward(-10 * model(**given)["loss"])
                model.zero_grad()
                return super().training_step(model, inputs, *more)

        class Counting(CompressionCallback):
            def on_train_end(self, *_: Any, **__: Any) -> None:
                counts.add(self.handle.stats.dropped)
                super().on_train_end()

        straight, _, _ = train(CompressionCallback(METHOD), "plain")
        attacked, _, _ = train(Counting(METHOD), "attacked", kind=Attacking)
        assert counts == {STEPS}, counts
        assert torch.equal(attacked, straight)

    # ---- Accelerate, in the same launch ---------------------------------------------------------------------------------
    from accelerate import Accelerator

    def loop(memories: Any, resume: Any = None, forget: bool = False) -> tuple[Tensor, dict[int, Any]]:
        accelerator = Accelerator(cpu=True)
        model = network()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.2))
        handle = grace.attach(model, METHOD, optimizer=optimizer)
        accelerator.register_for_checkpointing(handle.checkpoint(memories, whole=True))
        debts, first = {}, 0
        if resume is not None:
            accelerator.load_state(resume)
            first = STEPS // 2
            debts[first] = mean_debts(handle)
        if forget:
            handle.detach()
            handle = grace.attach(model, METHOD, optimizer=optimizer)
        for step in range(first, STEPS):
            rows = slice(8 * step + 4 * accelerator.process_index, 8 * step + 4 * accelerator.process_index + 4)
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(X[rows]), DATA.tensors[1][rows]))
            optimizer.step()
            debts[step + 1] = mean_debts(handle)
            if step + 1 == STEPS // 2 and resume is None:
                accelerator.save_state(str(FOLDER / "accelerate" / memories))
        handle.detach()
        return weights(model), debts

    def accelerate_resumes(rank: int, world: int) -> None:
        straight, debts = loop("mean")
        check_alike(straight)
        resumed, again = loop("mean", str(FOLDER / "accelerate/mean"))
        check_debts(debts[3], again[3])
        check_alike(resumed)

    def accelerate_resumes_with_the_same_bits(rank: int, world: int) -> None:
        straight, _ = loop("all")
        resumed, _ = loop("all", str(FOLDER / "accelerate/all"))
        assert torch.equal(straight, resumed)
        other, _ = loop("all", str(FOLDER / "accelerate/all"), forget=True)
        assert not torch.equal(straight, other)


if __name__ == "__main__":
    serve(
        {
            name: case
            for name, case in dict(globals()).items()
            if "resumes" in name or name.startswith("another") or name.endswith(("goes_on", "owes_nothing"))
        }
    )
