"""Which remedies act on a run of which system: one broken training for each pair, under `finitune run --mode heal`.

    python benchmarks/heal_systems.py [SYSTEM,...]     a table; each cell is one training of a tiny model
    python benchmarks/heal_systems.py SYSTEM FAULT     that training by itself

`kept`: the remedy was proved, applied, and kept; `its step`: it changed the bad step alone; `skipped`: the update was
discarded; `advice`: it was said and not done; another remedy is named. Whatever the cell, the run has to end by itself.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

STEPS, ROWS, BEGINS = 48, 8, 6
SCALES = {"untrained rows": 2.0**14, "overflow": 2.0**8}
"""Of the loss, in the program itself, for no system scales it on a CPU; computed in float16."""
SYSTEMS = {
    "plain loop": 1, "GradScaler": 1, "HF Trainer": 1, "TRL": 1, "Lightning": 1, "DDP": 2, "DDP scaler": 2,
    "ZeRO-1": 2, "ZeRO-2": 2,
}  # fmt: skip
"""With their processes."""
SCALED = ("GradScaler", "DDP scaler")
"""All of it in float16 autocast, under torch's GradScaler; odd batches are as odd as float16 can hold."""
FAULTS: Mapping[str, tuple[str, str]] = {
    "a lost record": ("skip-step", "guard"),
    "lost records": ("drop-samples", "heal"),
    "untrained rows": ("reinit-token-rows", "heal"),
    "overflow": ("float32-modules", "heal"),
    "rate too high": ("lower-learning-rate", "heal"),
    "odd batches": ("rollback-and-skip", "heal"),
}
"""The remedy that cures each, and the mode it is run in."""
OF_REGRESSION = ("a lost record", "lost records", "odd batches")


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        out = self.net(features)
        return {"logits": out} if labels is None else {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def regression(fault: str, odd: float) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    x = torch.randn(STEPS * ROWS, 8)
    y = x[:, :2] - x[:, 2:4]
    if fault == "odd batches":
        y[16 * ROWS : 19 * ROWS] *= odd
    else:
        x[
            torch.tensor([BEGINS * ROWS + 3, *([] if fault == "a lost record" else [BEGINS * ROWS + 4, 13 * ROWS + 6])])
        ] = math.nan
    return Regression(), [{"features": a, "labels": b} for a, b in zip(x, y, strict=True)]


def language(fault: str) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    from finitune.gym.data import batches
    from finitune.gym.faults import fp16_activation_overflow
    from finitune.gym.models import embedding_rows, tiny

    model, data = (
        tiny("llama", layers=4, initializer_range=0.1) if fault == "untrained rows" else tiny("llama"),
        batches(STEPS, rows=ROWS),
    )
    for number, batch in enumerate(data):
        for key in ("input_ids", "labels") if number >= BEGINS else ():
            if fault == "untrained rows":
                batch[key][:, 0] = 6
            elif fault == "overflow":
                batch[key][1::4, 10:12] = fp16_activation_overflow.TOKEN
    with torch.no_grad():
        if fault == "untrained rows":
            embedding_rows(model).mul_(0.2)[6] = 0
        elif fault == "overflow":
            fp16_activation_overflow.plant(model, "llama")
    if fault in SCALES:
        in_half(model, SCALES[fault])
    return model, [{key: batch[key][row] for key in ("input_ids", "labels")} for batch in data for row in range(ROWS)]


def in_half(model: Any, scale: float) -> None:
    """As a program that wraps its model in autocast, and scales its loss by a constant."""
    own = model.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            output = own(*args, **kwargs)
        output.loss = output.loss * scale
        return output

    model.forward = forward


def optimizer_of(fault: str, model: nn.Module) -> Any:
    if fault in ("rate too high", "odd batches"):
        return torch.optim.SGD(model.parameters(), lr=100.0 if fault == "rate too high" else 0.1)
    return torch.optim.AdamW(model.parameters(), lr=1e-2 if fault in OF_REGRESSION else 2e-3)


def stacked(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def in_a_loop(
    model: nn.Module, data: list[dict[str, Tensor]], optimizer: Any, *, ranks: int, zero: int | None, scaled: bool
) -> None:
    import torch.distributed as dist

    rank, each = int(os.environ.get("RANK", "0")), ROWS // ranks
    run: Any = model
    if zero is not None:
        import deepspeed

        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # wants a compiler
        deepspeed.init_distributed("gloo")
        config = {
            "train_micro_batch_size_per_gpu": each, "zero_optimization": {"stage": zero},
            "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
        }  # fmt: skip
        run, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    elif ranks > 1:
        dist.init_process_group("gloo")
        run = nn.parallel.DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=scaled)
    for first in range(rank * each, len(data), ROWS):
        with torch.autocast("cpu", torch.float16, enabled=scaled):
            loss = run(**stacked(data[first : first + each]))["loss"]
        if zero is not None:
            run.backward(loss)
            run.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    if dist.is_initialized():
        dist.destroy_process_group()


def by_transformers(
    model: Any, data: list[dict[str, Tensor]], optimizer: Any, *, trl: bool, scale: float | None, output: str
) -> None:
    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainingArguments

    common: dict[str, Any] = {
        "output_dir": output, "use_cpu": True, "per_device_train_batch_size": ROWS, "num_train_epochs": 1,
        "bf16": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant", "learning_rate": optimizer.param_groups[0]["lr"],
    }  # fmt: skip
    kind: Any = Trainer
    arguments, more = TrainingArguments, {"train_dataset": data}
    if trl:
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import SFTConfig, SFTTrainer

        kind, arguments = SFTTrainer, SFTConfig
        common |= {
            "dataset_kwargs": {"skip_prepare_dataset": True},
            "max_length": None,
            "gradient_checkpointing": False,
        }
        rows = [{key: value.tolist() for key, value in row.items()} for row in data]
        words = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "examples" / "yi" / "model")

        def as_tensors(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
            batch = {key: torch.tensor([row[key] for row in rows]) for key in ("input_ids", "labels")}
            return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}

        more = {"train_dataset": Dataset.from_list(rows), "processing_class": words, "data_collator": as_tensors}

    class InOrder(kind):
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            if not (trl and scale):
                return super().compute_loss(*args, **kwargs)
            with torch.autocast("cpu", dtype=torch.float16):  # TRL replaces the forward of the model, and its loss
                return super().compute_loss(*args, **kwargs) * scale

    InOrder(model=model, args=arguments(**common), optimizers=(optimizer, None), **more).train()


def by_lightning(model: nn.Module, data: list[dict[str, Tensor]], optimizer: Any) -> None:
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _index: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return optimizer

    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data, batch_size=ROWS, collate_fn=stacked))  # pyright: ignore[reportArgumentType]


def train(system: str, fault: str) -> None:
    from finitune.monitor.precision.float16_on_cpu import float16_on_cpu

    torch.set_num_threads(1)
    torch.manual_seed(0)
    odd = 1e3 if system in SCALED else 1e4
    model, data = regression(fault, odd) if fault in OF_REGRESSION else language(fault)
    optimizer = optimizer_of(fault, model)
    with float16_on_cpu(), tempfile.TemporaryDirectory() as output:
        if system in ("HF Trainer", "TRL"):
            by_transformers(model, data, optimizer, trl=system == "TRL", scale=SCALES.get(fault), output=output)
        elif system == "Lightning":
            by_lightning(model, data, optimizer)
        else:
            zero = int(system[-1]) if system.startswith("ZeRO") else None
            in_a_loop(model, data, optimizer, ranks=SYSTEMS[system], zero=zero, scaled=system in SCALED)


def cell(system: str, fault: str) -> str:
    """How that training went."""
    from finitune.recording import Recording

    remedy, mode = FAULTS[fault]
    if system == "TRL" and fault in OF_REGRESSION:
        return "as HF"
    ranks = SYSTEMS[system]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable, "-m", "finitune", "run", "--mode", mode, "--run-dir", f"{directory}/run", "--",
            sys.executable, *launcher, str(Path(__file__).resolve()), system, fault,
        ]  # fmt: skip
        around = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=around, cwd=directory, timeout=300
        )
        try:
            recording = Recording.load(Path(directory) / "run")
        except Exception:
            return f"exit {done.returncode}"
        events = recording.events("remedy")
        steps = len(recording.signals["loss"].values)
    if os.environ.get("SHOW"):
        print(done.stderr[-4000:], file=sys.stderr)
    end = "" if done.returncode == 0 else f", exit {done.returncode}"
    if mode == "guard":
        return f"skipped{end}" if "discarded" in done.stderr and steps == STEPS else f"no{end}"
    states = [(one["remedy"], one["state"]) for one in events if one["state"] != "advice"]
    if (remedy, "kept") in states:
        return f"kept{end}"
    if (remedy, "for its step") in states:
        return f"its step{end}"
    others = sorted({name for name, state in states if state in ("kept", "for its step")})
    return f"{', '.join(others) or ('advice' if events else 'no')}{end}"


def main() -> None:
    asked = sys.argv[1].split(",") if len(sys.argv) > 1 else list(SYSTEMS)
    print(f"{'':<12}" + "".join(f"{remedy:<21}" for remedy, _ in FAULTS.values()))
    for system in asked:
        print(f"{system:<12}", end="", flush=True)
        for fault in FAULTS:
            print(f"{cell(system, fault):<21}", end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(sys.argv[1], sys.argv[2])
    else:
        main()
