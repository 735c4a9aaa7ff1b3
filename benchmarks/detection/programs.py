"""The programs of the benchmark: small real trainings of many kinds, all of them healthy.

They were written down from what people train, before the symptoms were, and are not chosen by what any detector can do.
A program is a function from a seed to a `Training` that has not begun; its first docstring line is its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from detection.language import (
    accumulation,
    accumulation_llama,
    adafactor,
    bfloat16,
    constant,
    curriculum,
    domain_return,
    domain_shift,
    fine_tune,
    float16,
    float16_llama,
    generator,
    gentle,
    gentle_gpt,
    gpt,
    heavy_tails,
    lora,
    mixture,
    one_batch,
    preferences,
    restarts,
    shorter,
    summed,
)
from detection.training import Batch, Training
from torch import Tensor, nn
from torch.optim import SGD, AdamW, RMSprop

Program = Callable[[int], Training]


def policy_gradient(seed: int) -> Training:
    """REINFORCE with normalised advantages; the loss changes its sign"""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    best = torch.randn(8, 4, generator=generator(seed, 0))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        policy = torch.distributions.Categorical(logits=model(batch["state"]))
        action = policy.sample()
        reward = (batch["state"] @ best).gather(1, action[:, None]).squeeze(1) + batch["luck"]
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        return -(policy.log_prob(action) * advantage).mean()

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        return {"state": torch.randn(16, 8, generator=g), "luck": torch.randn(16, generator=g)}

    return Training(
        model=model, optimizer=AdamW(model.parameters(), lr=3e-3), draw=draw, loss=loss, rate=constant(3e-3), clip=0.5
    )


def several_epochs(seed: int) -> Training:
    """PPO with a value function: each batch is used four times"""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 5))
    best = torch.randn(8, 4, generator=generator(seed, 0))

    def draw(step: int) -> Batch:
        g = generator(seed, step // 4)
        return {"state": torch.randn(32, 8, generator=g), "action": torch.randint(4, (32,), generator=g)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch["state"])
        policy = torch.distributions.Categorical(logits=out[:, :4])
        reward = (batch["state"] @ best).gather(1, batch["action"][:, None]).squeeze(1)
        advantage = reward - out[:, 4].detach()
        ratio = (policy.log_prob(batch["action"]) - math.log(0.25)).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -gain.mean() + 0.5 * F.mse_loss(out[:, 4], reward) - 0.01 * policy.entropy().mean()

    return Training(
        model=model, optimizer=AdamW(model.parameters(), lr=1e-3), draw=draw, loss=loss, rate=constant(1e-3), clip=0.5
    )


def classifier(seed: int) -> Training:
    """Convolutions with batch norm, batch 16, SGD with momentum, rate divided by 10 twice, label noise"""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip
    shapes = torch.randn(10, 1, 12, 12, generator=generator(seed, 0))

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        labels = torch.randint(10, (16,), generator=g)
        images = shapes[labels] + torch.randn(16, 1, 12, 12, generator=g)
        wrong = torch.rand(16, generator=g) < 0.1
        return {"images": images, "labels": torch.where(wrong, torch.randint(10, (16,), generator=g), labels)}

    return Training(
        model=model, optimizer=SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4), draw=draw,
        loss=lambda model, batch: F.cross_entropy(model(batch["images"]), batch["labels"]),
        rate=lambda step: 0.05 * 0.1 ** ((step > 600) + (step > 900)), clip=None,
    )  # fmt: skip


def contrastive(seed: int) -> Training:
    """Two towers, InfoNCE with a learned temperature, batch 16"""
    torch.manual_seed(seed)
    model = nn.ModuleDict({
        "left": nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)),
        "right": nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)),
        "temperature": nn.Linear(1, 1, bias=False),
    })  # fmt: skip
    nn.init.constant_(model["temperature"].weight, math.log(1 / 0.07))
    turn = torch.randn(16, 16, generator=generator(seed, 0))

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        left = torch.randn(16, 16, generator=g)
        return {"left": left, "right": left @ turn / 4 + 0.5 * torch.randn(16, 16, generator=g)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        left, right = (F.normalize(model[side](batch[side]), dim=1) for side in ("left", "right"))
        scores = left @ right.T * model["temperature"].weight.exp().clamp(max=100)
        return (F.cross_entropy(scores, torch.arange(16)) + F.cross_entropy(scores.T, torch.arange(16))) / 2

    return Training(
        model=model, optimizer=AdamW(model.parameters(), lr=1e-3), draw=draw, loss=loss, rate=constant(1e-3)
    )


def autoencoder(seed: int) -> Training:
    """VAE, the weight of its second term grows from zero, summed over pixels"""
    torch.manual_seed(seed)
    model = nn.ModuleDict({
        "encode": nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)),
        "decode": nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64)),
    })  # fmt: skip
    basis = torch.randn(6, 64, generator=generator(seed, 0))

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        pixels = torch.sigmoid(torch.randn(8, 6, generator=g) @ basis)
        return {"pixels": pixels, "share": torch.tensor(min(1.0, step / 500))}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        mean, log_variance = model["encode"](batch["pixels"]).chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        fit = F.binary_cross_entropy_with_logits(model["decode"](latent), batch["pixels"], reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return (fit + batch["share"] * divergence) / len(mean)

    return Training(
        model=model, optimizer=RMSprop(model.parameters(), lr=1e-3), draw=draw, loss=loss, rate=constant(1e-3),
        clip=None,
    )  # fmt: skip


def exact_fit(seed: int) -> Training:
    """A regression without noise, whose loss goes from 1 towards zero"""
    torch.manual_seed(seed)
    model = nn.Linear(8, 4)
    truth = torch.randn(8, 4, generator=generator(seed, 0))

    def draw(step: int) -> Batch:
        x = torch.randn(16, 8, generator=generator(seed, step))
        return {"x": x, "y": x @ truth}

    return Training(
        model=model, optimizer=AdamW(model.parameters(), lr=1e-2, weight_decay=0), draw=draw,
        loss=lambda model, batch: F.mse_loss(model(batch["x"]), batch["y"]), rate=constant(3e-2), clip=None,
    )  # fmt: skip


def wild_targets(seed: int) -> Training:
    """Regression on targets with infinite variance, batch 4, squared error"""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    truth = torch.randn(8, 1, generator=generator(seed, 0))

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        x = torch.randn(4, 8, generator=g)
        chi = torch.randn(4, 2, generator=g).square().sum(1, keepdim=True) / 2
        return {"x": x, "y": x @ truth + torch.randn(4, 1, generator=g) / chi.sqrt()}

    return Training(
        model=model, optimizer=AdamW(model.parameters(), lr=1e-3), draw=draw,
        loss=lambda model, batch: F.mse_loss(model(batch["x"]), batch["y"]), rate=constant(1e-3),
    )  # fmt: skip


def adversaries(seed: int) -> Training:
    """GAN on two dimensions, both losses in one backward"""
    torch.manual_seed(seed)
    model = nn.ModuleDict({
        "maker": nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)),
        "judge": nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)),
    })  # fmt: skip

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        angle = 2 * math.pi * torch.rand(16, 1, generator=g)
        return {"real": torch.cat([angle.cos(), angle.sin()], dim=1), "noise": torch.randn(16, 4, generator=g)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        made, judge = model["maker"](batch["noise"]), model["judge"]
        fixed = {name: p.detach() for name, p in judge.named_parameters()}
        fooled = F.softplus(-torch.func.functional_call(judge, fixed, (made,))).mean()
        return fooled + F.softplus(-judge(batch["real"])).mean() + F.softplus(judge(made.detach())).mean()

    return Training(
        model=model, optimizer=AdamW(model.parameters(), lr=1e-3, betas=(0.5, 0.99)), draw=draw, loss=loss,
        rate=constant(1e-3), clip=None,
    )  # fmt: skip


class Experts(nn.Module):
    """A layer of which every token uses the two likeliest of eight experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 8)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(2)
        out = x
        for number, expert in enumerate(self.experts):
            share = (weight * (chosen == number)).sum(-1, keepdim=True)
            used = share.squeeze(-1) > 0
            if used.any():
                out = out.index_add(0, used.nonzero().squeeze(1), share[used] * expert(x[used]))
        return out


def experts(seed: int) -> Training:
    """Mixture of experts, batch 2 to 6: many an expert has no gradient in many a step"""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), Experts(), nn.Linear(16, 4))
    truth = torch.randn(8, 4, generator=generator(seed, 0))

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        x = torch.randn(int(torch.randint(2, 7, (), generator=g)), 8, generator=g)
        return {"x": x, "labels": (x @ truth).argmax(1)}

    return Training(
        model=model, optimizer=AdamW(model.parameters(), lr=1e-3), draw=draw,
        loss=lambda model, batch: F.cross_entropy(model(batch["x"]), batch["labels"]), rate=constant(1e-3),
    )  # fmt: skip


def replicas(seed: int) -> Training:
    """Two copies of a perceptron that take the same updates of SGD"""
    torch.manual_seed(seed)
    model, twin = (nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    truth = torch.randn(8, 3, generator=generator(seed, 0))

    def draw(step: int) -> Batch:
        x = torch.randn(8, 8, generator=generator(seed, step))
        return {"x": x, "labels": (x @ truth).argmax(1)}

    return Training(
        model=model, optimizer=SGD(model.parameters(), lr=0.1), draw=draw, replica=twin,
        loss=lambda model, batch: F.cross_entropy(model(batch["x"]), batch["labels"]), rate=constant(0.1),
    )  # fmt: skip


HEALTHY: Mapping[str, Program] = {
    program.__name__.replace("_", "-"): program
    for program in (
        gpt, heavy_tails, restarts, curriculum, mixture, summed, fine_tune, lora, float16, bfloat16, accumulation,
        shorter, one_batch, adafactor, preferences, policy_gradient, several_epochs, classifier, contrastive,
        autoencoder, exact_fit, wild_targets, adversaries, experts, replicas,
    )
}  # fmt: skip
SHIFTS: Mapping[str, Program] = {
    program.__name__.replace("_", "-"): program for program in (domain_shift, domain_return)
}
"""Controls: other data from one step to the next. What they do to the loss is what bad data does to it."""
MORE: Mapping[str, Program] = {
    program.__name__.replace("_", "-"): program for program in (float16_llama, accumulation_llama, gentle, gentle_gpt)
}
"""Further hosts of faults."""
PROGRAMS: Mapping[str, Program] = {**HEALTHY, **SHIFTS, **MORE}
