"""What all stacks of the conformance table share: data, a tiny model, the eight faults, and a diary of every step.

A fault is in the data: a marked row of the batch of step 3 makes an operator of the model divide by zero, so the step
is as bad when it is run again. Nothing here knows finitune, but for `door="line"` and `broken`.

A stack is a program: `python stacks/NAME.py PLAN`. PLAN is a JSON list of runs, each with `variant`, `fault`,
`directory`, `door`, `until`, `resume` and `broken`. A run trains 8 steps in the way of the stack and leaves
`result<rank>.json`, `said<rank>.txt` and `code<rank>` in its directory.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import math
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo  # torch itself imports it with the first optimizer: once for all runs
import torch.nn.functional as F
from _faults import BAD, SPIKE, STEPS
from torch import Tensor, nn

ROWS, LENGTH, VOCABULARY = 4, 12, 64
TIMEOUT = 600
"""Seconds that a run may take. What Unsloth has compiled took more than 150 where fifteen shared two cores."""
MARK, SPIKE_MARK = 60, 61
"""Tokens that only the batches of steps BAD and SPIKE hold, where the fault wants them."""
_NUMERATOR = {"grad-nan": 0.0, "grad+inf": 1.0, "grad-inf": -1.0}


class TinyLM(nn.Module):
    """A causal language model of 12 k parameters; returns logits, [rows, positions, VOCABULARY]."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, hidden)
        self.blocks = nn.ModuleList([Block(hidden) for _ in range(2)])
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.up = nn.Linear(hidden, 2 * hidden)
        self.down_proj = nn.Linear(2 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.mix(self.norm(x)).cumsum(dim=1)
        return x + self.down_proj(F.gelu(self.up(seen)))


@dataclass(slots=True, kw_only=True)
class Scenario:
    """One run. `rows` is the diary: one entry per optimizer step."""

    variant: str
    fault: str
    directory: Path
    door: str = "command"
    until: int = STEPS
    resume: bool = False
    rank: int = 0
    faulty_rank: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    shown: dict[int, dict[str, float]] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    marked: bool = False
    spike: bool = False

    @property
    def first(self) -> int:
        """The first step of this run; a resumed one begins in the middle."""
        return self.until // 2 + 1 if self.resume else 1

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def run_dir(self) -> Path:
        return self.directory / "run"

    # Data.

    def batches(self) -> list[dict[str, Tensor]]:
        """All STEPS batches of `input_ids` and `labels`, [ROWS, LENGTH]: counting, from a start of its own per row."""
        generator = torch.Generator().manual_seed(100 + self.rank)
        out: list[dict[str, Tensor]] = []
        for step in range(1, STEPS + 1):
            start = torch.randint(0, 32, (ROWS, 1), generator=generator)
            ids = (start + torch.arange(LENGTH)) % 50
            labels = ids.clone()
            if self.fault != "healthy" and self.rank == self.faulty_rank:
                if step == BAD:
                    ids[0, 0] = MARK
                    labels = torch.full_like(labels, -100) if self.fault == "labels-ignored" else labels
                if step == SPIKE and self.fault == "aux-nan+spike":
                    ids[0, 0] = SPIKE_MARK
            out.append({"input_ids": ids, "labels": labels})
        return out

    # Faults.

    def plant(self, model: nn.Module, *, linear: nn.Linear | None = None) -> None:
        """Make `linear`, by default the first `down_proj`, take part in the gradient faults of a marked batch."""
        linear = linear or next(m for name, m in model.named_modules() if name.endswith("down_proj"))  # type: ignore[assignment]
        assert linear is not None
        model.register_forward_pre_hook(self._look, with_kwargs=True)
        if self.fault in _NUMERATOR:
            numerator = _NUMERATOR[self.fault]
            own = linear

            def forward(x: Tensor) -> Tensor:
                bad = self.marked and torch.is_grad_enabled()
                return F.linear(x, _DividesByZero.apply(own.weight, numerator) if bad else own.weight, own.bias)

            linear.forward = forward  # type: ignore[method-assign]
        if self.fault == "grad-nan-late" and os.environ.get("WORLD_SIZE", "1") == "1":
            linear.weight.register_hook(self._late)

    def _late(self, gradient: Tensor) -> Tensor | None:
        if not self.marked:
            return None
        gradient = gradient.clone()
        gradient[0, 0] = math.nan
        return gradient

    def spoil_late(self, parameter: Tensor) -> None:
        """The late NaN of a loop whose gradients are reduced over ranks: after that, on one of them."""
        if self.fault == "grad-nan-late" and self.marked and parameter.grad is not None:
            gradient: Any = parameter.grad
            gradient = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            with torch.no_grad():
                gradient[0, 0] = math.nan

    def _look(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if torch.is_grad_enabled() and isinstance(ids, Tensor):
            self.marked = bool((ids[:, 0] == MARK).any())  # a model may well make up such a token further on
            self.spike = bool((ids[:, 0] == SPIKE_MARK).any())

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss as a user's own loop has it; next-token cross entropy."""
        targets = labels[:, 1:].reshape(-1)
        flat = logits[:, :-1].reshape(-1, logits.shape[-1]).float()
        if self.fault == "loss-nan":  # the masked mean that a user wrote by hand
            mask = torch.full(targets.shape, 0.0 if self.marked else 1.0)
            return (F.cross_entropy(flat, targets, reduction="none") * mask).sum() / mask.sum()
        return self.after(F.cross_entropy(flat, targets))

    def after(self, loss: Tensor) -> Tensor:
        """What the loop adds to the loss: a detached term of 0/0, a spike."""
        if self.fault.startswith("aux-nan") and self.marked:
            zero = torch.zeros(())
            loss = loss + (zero / zero)
        return loss * 100 if self.spike else loss

    def spoil_output(self, output: Any) -> Any:
        """For trainers that take the loss out of the model: the same faults on the model's own output."""
        if output.get("loss") is not None and torch.is_grad_enabled():
            if self.fault == "loss-nan":
                count = torch.tensor(0.0 if self.marked else 1.0)
                output["loss"] = output["loss"] * count / count
            else:
                output["loss"] = self.after(output["loss"])
        return output

    # The diary.

    def stepped(self, step: int, model: nn.Module, optimizer: Any, *, more: Iterable[Tensor] = ()) -> None:
        """Write down weights, optimizer state and random numbers as they are after `step`."""
        # ZeRO 3 holds the weights elsewhere: whether a copy of all of one lies about does not matter.
        weights = [p.detach() for p in model.parameters() if not hasattr(p, "ds_tensor")] + list(more)
        state = state_tensors(optimizer)
        self.rows.append(
            {
                "step": step,
                "weights": digest(weights),
                "state": digest(state),
                "finite_weights": all(map(finite, weights)),
                "finite_state": all(map(finite, state)),
                "random": digest([torch.get_rng_state()])
                + hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
            }
        )

    def shows(self, step: int, **figures: Any) -> None:
        """What the stack's own log says of `step`."""
        known = {k: float(v) for k, v in figures.items() if isinstance(v, int | float)}
        self.shown.setdefault(step, {}).update(known)
        print(f"step {step}: " + ", ".join(f"{k} {v:g}" for k, v in known.items()), flush=True)

    def finish(self, files: Iterable[Path] = ()) -> None:
        """Write the result; `files` are those of the checkpoint that the stack itself wrote."""
        held = {path: list(tensors_of(path)) for path in files}
        result = {
            "rows": self.rows,
            "shown": self.shown,
            "poisoned_files": [path.name for path, tensors in held.items() if not all(map(finite, tensors))],
            "saved_tensors": sum(map(len, held.values())),
            **self.more,
        }
        (self.directory / f"result{self.rank}.json").write_text(json.dumps(result))

    def watch(self, model: nn.Module, optimizer: Any) -> Any:
        """The one-line door, where this run takes it."""
        if self.door == "line":
            import finitune

            return finitune.watch(model, optimizer, run_dir=self.run_dir)
        return None


class _DividesByZero(torch.autograd.Function):
    """The identity, whose backward adds a quotient that is 0/0, 1/0 or -1/0 at one element, and 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, numerator: float) -> Tensor:
        ctx.numerator = numerator
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        above, below = torch.zeros_like(gradient), torch.ones_like(gradient)
        above[0, 0], below[0, 0] = ctx.numerator, 0.0
        return gradient + above / below, None


def state_tensors(optimizer: Any) -> list[Tensor]:
    while not hasattr(optimizer, "state") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return [t for entry in optimizer.state.values() for t in entry.values() if isinstance(t, Tensor)]


def local(tensor: Tensor) -> Tensor:
    spread: Any = tensor
    return spread.to_local() if hasattr(tensor, "to_local") else tensor


def digest(tensors: Iterable[Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(local(tensor.detach()).contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def finite(tensor: Tensor) -> bool:
    own = local(tensor.detach())
    return not own.is_floating_point() or bool(torch.isfinite(own).all())


def tensors_of(path: Path) -> Iterable[Tensor]:
    """Every tensor of one checkpoint file; none of files of other kinds."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        yield from load_file(path).values()
    elif path.suffix in (".pt", ".bin", ".ckpt", ".pth"):
        # This run wrote it. The restricted loader refuses what lies beside the tensors: DeepSpeed's own classes.
        yield from _tensors(torch.load(path, weights_only=False, map_location="cpu"))


def _tensors(data: Any) -> Iterable[Tensor]:
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _tensors(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _tensors(value)


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def main(run: Callable[[Scenario], None]) -> None:
    """Make the runs of the plan one after the other, each in a fork of this process, which has imported the stack."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    given = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    for number, planned in enumerate(json.loads(given.plan.read_text())):
        directory = Path(planned["directory"])
        directory.mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if child == 0:
            _begin(directory, number, rank)
            if planned.pop("broken"):
                break_finitune()
            world = int(os.environ.get("WORLD_SIZE", "1"))
            planned["directory"] = directory
            _to_the_end(partial(run, Scenario(**planned, rank=rank, faulty_rank=world - 1)))
        _, status = os.waitpid(child, 0)
        (directory / f"code{rank}").write_text(str(os.waitstatus_to_exitcode(status)))


def _begin(directory: Path, number: int, rank: int) -> None:
    """Output, recording and meeting point of this run are its own, and so is the time it has."""
    signal.alarm(TIMEOUT)
    said = os.open(directory / f"said{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(directory)
    if "MASTER_PORT" in os.environ:  # the launcher's own store remembers the runs before
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        os.environ["MASTER_PORT"] = _free_port(directory / f"port{number}", rank)
    if "FINITUNE_RUN_DIR" in os.environ:
        os.environ["FINITUNE_RUN_DIR"] = str(directory / "run")
    torch.set_num_threads(1)
    seed()


def _free_port(file: Path, rank: int) -> str:
    """One that nobody listens on, as the first rank has found it: beside the launcher's own any may be taken."""
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            file.with_suffix(".new").write_text(str(free.getsockname()[1]))
        file.with_suffix(".new").rename(file)
    while not file.exists():
        time.sleep(0.01)
    return file.read_text()


def _to_the_end(run: Callable[[], None]) -> NoReturn:
    """Run, and end as the interpreter does, but for taking all modules apart: that costs more than most runs."""
    code = 1
    try:
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def break_finitune() -> None:
    """Let every measurement of the guard raise."""
    import finitune.monitor.step_measures

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken on purpose")

    finitune.monitor.step_measures.measure = broken
