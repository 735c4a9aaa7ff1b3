"""What the guard costs on a healthy step at each of its levels, beside its peers, all arms interleaved.

    python benchmarks/overhead.py [--kind llama] [--rounds 8] [--threads 2] [--device cuda]

Kinds: a Llama of 25M parameters in float32 (`llama`), in bfloat16 (`bf16`), with LoRA (`lora`), compiled (`compiled`),
600 small tensors (`small`), and, for a GPU, a Llama of 1.1B in bfloat16 with a fused AdamW (`1b`) or without one
(`1b-foreach`).

Every arm works on the same model, optimizer and batches. In each round each arm in turn is attached, takes one step
that is not timed (caches, first-step work), then `--steps` timed ones, and is taken off again. The order rotates from
round to round. Printed are the median seconds per step, and the ratio to the plain step of the same round: its
median, with the smallest and the largest of all rounds; by the clock on the wall and by processor time, which a busy
machine disturbs less (use `--threads 1` for it: waiting threads spin).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.debug_utils import DebugUnderflowOverflow

import finitune

ROWS, LENGTH, VOCABULARY = 4, 256, 8000
CLIP = 1.0


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=448, intermediate_size=1216, num_hidden_layers=7,
            num_attention_heads=7, num_key_value_heads=7, max_position_embeddings=LENGTH, use_cache=False,
        )
    )  # fmt: skip


def llama_1b() -> LlamaForCausalLM:
    """The sizes of TinyLlama."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
            num_key_value_heads=4, max_position_embeddings=2048, use_cache=False,
        )
    )  # fmt: skip


class Small(nn.Module):
    """600 tensors of 32 or 1,024 elements, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(300))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        x = input_ids[:, :32].float() / VOCABULARY
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) / 300
        return SimpleNamespace(loss=(x - labels[:, :32].float() / VOCABULARY).square().mean())


class Training:
    """The step that every arm runs: forward, backward, clip, AdamW."""

    def __init__(self, kind: str, device: str) -> None:
        torch.manual_seed(0)
        big = kind.startswith("1b")
        with torch.device(device):
            self.model: Any = Small() if kind == "small" else llama_1b() if big else llama()
        if big or kind == "bf16":
            self.model.to(torch.bfloat16)
        elif kind == "lora":
            self.model = get_peft_model(self.model, LoraConfig(r=16, target_modules="all-linear"))
        elif kind == "compiled":
            self.model.compile()
        self.model.train()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True if kind == "1b" else None)
        shape = (ROWS, 4 * LENGTH) if big else (ROWS, LENGTH)
        self.batches = [torch.randint(VOCABULARY, shape, device=device) for _ in range(8)]
        self.taken = 0
        self.norms_wanted = False

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def step(self) -> float:
        """One optimizer step; its loss."""
        ids = self.batches[self.taken % len(self.batches)]
        self.taken += 1
        loss: Tensor = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        if self.norms_wanted:
            for p in self.model.parameters():
                if p.grad is not None:
                    p.grad.norm().item()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


@contextlib.contextmanager
def plain(_training: Training) -> Iterator[None]:
    yield


def guard(level: str) -> Callable[[Training], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def attached(training: Training) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as directory, finitune.watch(
            training.model, training.optimizer, run_dir=Path(directory) / "run", signals=level
        ):  # fmt: skip
            yield

    return attached


@contextlib.contextmanager
def detect_anomaly(_training: Training) -> Iterator[None]:
    with torch.autograd.set_detect_anomaly(mode=True):
        yield


@contextlib.contextmanager
def debug_underflow_overflow(training: Training) -> Iterator[None]:
    hooks = [(m._forward_hooks, dict(m._forward_hooks)) for m in training.model.modules()]
    DebugUnderflowOverflow(training.model)
    try:
        yield
    finally:  # it has no way to be taken off
        for now, before in hooks:
            now.clear()
            now.update(before)


@contextlib.contextmanager
def item_norms(training: Training) -> Iterator[None]:
    training.norms_wanted = True
    try:
        yield
    finally:
        training.norms_wanted = False


ARMS = {
    "plain": plain,
    "finitune gate": guard("gate"),
    "finitune economy": guard("economy"),
    "finitune full": guard("full"),
    "per-tensor .item() norms": item_norms,
    "torch detect_anomaly": detect_anomaly,
    "DebugUnderflowOverflow": debug_underflow_overflow,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one step, in seconds."""

    wall: float
    processor: float


def cost_per_step(training: Training, arm: str, steps: int) -> Cost:
    with ARMS[arm](training):
        training.step()
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            training.step()  # ends with a read of the loss, for which a GPU has to be done
        return Cost(wall=(time.perf_counter() - wall) / steps, processor=(time.process_time() - processor) / steps)


def _device(device: str) -> str:
    return (
        f"{torch.get_num_threads()} threads" if device == "cpu" else torch.get_device_module(device).get_device_name()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--kind", default="llama", choices=["llama", "bf16", "lora", "small", "compiled", "1b", "1b-foreach"]
    )
    parser.add_argument("--rounds", type=int, default=8, help="rounds over all arms  [default: 8]")
    parser.add_argument("--steps", type=int, default=2, help="timed steps per arm and round  [default: 2]")
    parser.add_argument("--device", default="cpu", help="where it trains  [default: cpu]")
    parser.add_argument(
        "--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="beside plain  [default: all]"
    )
    parser.add_argument("--threads", type=int, default=None, help="threads of torch  [default: torch's own choice]")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    training = Training(arguments.kind, arguments.device)
    rows, length = training.batches[0].shape
    print(
        f"{training.size / 1e6:.1f}M parameters, {arguments.kind}, {rows} x {length} tokens, "
        f"{_device(arguments.device)}, torch {torch.__version__}, "
        f"{arguments.rounds} rounds of {arguments.steps} steps"
    )
    training.step()
    names = [name for name in ARMS if name in ("plain", *arguments.arms)]
    rounds: list[dict[str, Cost]] = []
    for number in range(arguments.rounds):
        first = number % len(names)
        rounds.append({name: cost_per_step(training, name, arguments.steps) for name in names[first:] + names[:first]})
    for clock in ("wall", "processor"):
        print(f"{clock + ' time':26}{'s / step':>10}{'ratio':>9}{'min':>9}{'max':>8}")
        for name in names:
            seconds = [getattr(costs[name], clock) for costs in rounds]
            ratios = [own / getattr(costs["plain"], clock) for own, costs in zip(seconds, rounds, strict=True)]
            figures = f"{statistics.median(ratios):9.3f}{min(ratios):9.3f}{max(ratios):8.3f}"
            print(f"{name:26}{statistics.median(seconds):10.4f}{figures}")


if __name__ == "__main__":
    main()
