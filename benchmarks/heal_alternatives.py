"""Two remedies that a running run is not changed by: are the steps that diverge borne with them, beside a lower rate?

    python benchmarks/heal_alternatives.py

First the z-loss: runs whose rate jumps so that the batch of K steps later has a higher loss than the last one before,
taken again with the penalty, a hundred times the penalty, a tenth and a hundredth of the rate. Then StableAdamW's bound
on updates: nets whose gradients grow 10,000 times under AdamW, which divides that away again, but not at once.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from finitune.gym.data import batches
from finitune.gym.models import tiny

BEFORE, K = 40, 24
PENALTY = 1e-4
WORSE = 1.05


def jumped(
    family: str, tied: bool, name: str, jump: float, seed: int, *, penalty: float = 0.0, factor: float = 1.0  # noqa: FBT001
) -> bool:  # fmt: skip
    """Whether the loss K steps after the jump is no worse than before it."""
    model: Any = tiny(family, hidden=32, vocabulary=128, seed=seed, tie_word_embeddings=tied)
    own: Any = {"SGD": (torch.optim.SGD, 0.5), "AdamW": (torch.optim.AdamW, 3e-3)}[name]
    optimizer = own[0](model.parameters(), lr=own[1])
    level = math.nan
    for step, batch in enumerate(batches(BEFORE + K + 1, rows=4, length=16, vocabulary=128, seed=seed), 1):
        if step == BEFORE + 1:
            optimizer.param_groups[0]["lr"] *= jump * factor
        out = model(**batch)
        loss, last = out.loss, float(out.loss)
        if step > BEFORE:
            loss = loss + penalty * torch.logsumexp(out.logits.float(), -1).square().mean()
        else:
            level = last
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.isfinite(last) and last <= WORSE * level


def z_loss() -> None:
    ways: dict[str, dict[str, float]] = {
        f"penalty {PENALTY:g}": {"penalty": PENALTY}, f"penalty {100 * PENALTY:g}": {"penalty": 100 * PENALTY},
        "rate times 0.1": {"factor": 0.1}, "rate times 0.01": {"factor": 0.01},
    }  # fmt: skip
    diverged, borne = 0, dict.fromkeys(ways, 0)
    runs = [
        (family, tied, name, jump, seed)
        for family in ("llama", "gpt2") for tied in (False, True) for name in ("SGD", "AdamW")
        for jump in (3, 10, 30, 100, 300, 1000) for seed in (1, 2)
    ]  # fmt: skip
    for run in runs:
        if not jumped(*run):
            diverged += 1
            for way, settings in ways.items():
                borne[way] += jumped(*run, **settings)
    print(f"z-loss: {diverged} runs diverge; borne with {', '.join(f'{way}: {n}' for way, n in borne.items())}")


def grown(
    rate: float, beta: float, width: int, depth: int, act: type[nn.Module], *, bound: bool, factor: float
) -> float:
    """The mean loss of the last steps of a net whose gradients grow at step 60."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), act())]
    model = nn.Sequential(nn.Linear(6, width), act(), *hidden, nn.Linear(width, 3))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, beta)), list[float]()
    for step in range(1, 161):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        loss = mse_loss(model(x), x[:, :3])
        (loss * 1e4 if step >= 60 else loss).backward()
        optimizer.param_groups[0]["lr"] = rate * (factor if step >= 60 else 1.0)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        for p, was in zip(model.parameters(), before, strict=True) if bound else ():
            bounded(p, was, optimizer.state[p], beta)
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return statistics.mean(losses[-16:])


@torch.no_grad()
def bounded(p: nn.Parameter, was: Tensor, state: dict[str, Any], beta: float) -> None:
    assert p.grad is not None
    square = state["exp_avg_sq"] / (1 - beta ** float(state["step"]))
    size = float((p.grad.square() / square.clamp_min(1e-16)).mean().sqrt())
    if size > 1:
        p.copy_(torch.lerp(was, p, 1 / size))


def updates() -> None:
    better = runs = 0
    for rate in (1e-3, 3e-3, 1e-2):
        for beta in (0.999, 0.9999):
            for net in ((64, 2, nn.Tanh), (128, 4, nn.ReLU), (256, 3, nn.GELU)):
                runs += 1
                lower = grown(rate, beta, *net, bound=False, factor=0.1)
                better += grown(rate, beta, *net, bound=True, factor=1.0) < lower
    print(f"bound on updates: {better} of {runs} runs end lower with it than with a tenth of the rate")


if __name__ == "__main__":
    torch.set_num_threads(1)
    z_loss()
    updates()
