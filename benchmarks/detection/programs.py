"""The programs of the benchmark: small real trainings of many kinds, all of them healthy.

They were written down from what people train, before the symptoms were, and are not chosen by what any detector can do.
A program is a function from a seed to a `Training` that has not begun; its first docstring line is its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from detection.training import Batch, Training, train
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, RMSprop

from finitune.gym.models import tiny

VOCABULARY, HIDDEN, LENGTH = 128, 32, 32
STEPS = 1200
"""Of every healthy run; schedules end here."""

Program = Callable[[int], Training]


def generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * seed + step)


def walks(
    g: torch.Generator, rows: int, length: int, noise: float | Tensor = 0.2, language: int = 0, words: int = VOCABULARY
) -> Tensor:
    """Walks through a fixed permutation of the words, with jumps anywhere; [rows, length], int64."""
    successor = torch.randperm(words, generator=torch.Generator().manual_seed(language))
    ids = torch.randint(words, (rows, length), generator=g)
    jump = torch.rand(rows, length, generator=g) < noise
    for position in range(1, length):
        ids[:, position] = torch.where(jump[:, position], ids[:, position], successor[ids[:, position - 1]])
    return ids


def text(ids: Tensor) -> Batch:
    return {"input_ids": ids, "labels": ids.clone()}


def constant(lr: float, warm_up: int = 20) -> Callable[[int], float]:
    return lambda step: lr * min(1.0, step / warm_up)


def cosine(lr: float, warm_up: int = 20, total: int = STEPS) -> Callable[[int], float]:
    return lambda step: lr * min(step / warm_up, 0.5 * (1 + math.cos(math.pi * min(1.0, step / total))))


def language_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss


def language_model(family: str, seed: int, draw: Callable[[int], Batch], **settings: object) -> Training:
    torch.manual_seed(seed)
    model = tiny(family, hidden=HIDDEN, vocabulary=VOCABULARY, seed=seed)
    given = {"rate": constant(1e-3), "loss": language_loss, "draw": draw, "embedding": model.get_input_embeddings()}
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return Training(**({"model": model, "optimizer": optimizer} | given | settings))


def gpt(seed: int) -> Training:
    """GPT-2, batch 8, constant rate"""
    return language_model("gpt2", seed, lambda step: text(walks(generator(seed, step), 8, LENGTH)))


def heavy_tails(seed: int) -> Training:
    """Llama, batch 2, documents of very different length and noise, cosine to zero"""

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        noise = torch.rand(2, 1, generator=g) ** 3
        ids = walks(g, 2, 48, noise)
        lengths = (8 * torch.exp(torch.randn(2, generator=g))).clamp(4, 48).long()
        if torch.rand((), generator=g) < 0.02:
            ids[0] = ids[0, :3].repeat(16)
        labels = ids.masked_fill(torch.arange(48) >= lengths[:, None], -100)
        return {"input_ids": ids, "labels": labels}

    return language_model("llama", seed, draw, rate=cosine(2e-3))


def restarts(seed: int) -> Training:
    """Llama, batch 4, cosine with warm restarts every 300 steps"""
    return language_model(
        "llama", seed, lambda step: text(walks(generator(seed, step), 4, LENGTH)),
        rate=lambda step: 3e-3 * 0.5 * (1 + math.cos(math.pi * (step % 300) / 300)),
    )  # fmt: skip


def curriculum(seed: int) -> Training:
    """Qwen2, batch 4, texts grow longer and noisier all the time"""

    def draw(step: int) -> Batch:
        share = min(1.0, step / STEPS)
        return text(walks(generator(seed, step), 4, 8 + int(24 * share), 0.5 * share))

    return language_model("qwen2", seed, draw)


def mixture(seed: int) -> Training:
    """GPT-2, batch 8, a second language takes over gradually"""

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        ids = walks(g, 8, LENGTH)
        other = torch.rand(8, 1, generator=g) < min(1.0, max(0.0, (step - 400) / 400))
        return text(torch.where(other, walks(g, 8, LENGTH, language=1), ids))

    return language_model("gpt2", seed, draw)


def summed(seed: int) -> Training:
    """Llama, loss summed over tokens of 2 to 16 rows, no clipping"""

    def draw(step: int) -> Batch:
        g = generator(seed, step)
        return text(walks(g, int(torch.randint(2, 17, (), generator=g)), LENGTH))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(input_ids=batch["input_ids"]).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")

    return language_model("llama", seed, draw, loss=loss, clip=None)


def fine_tune(seed: int) -> Training:
    """Llama trained on one language, then fine-tuned on a mixture with another at a low rate"""
    training = language_model("llama", seed, lambda step: text(walks(generator(seed, step), 8, LENGTH)))
    train(training, 250, {})

    def draw(step: int) -> Batch:
        g = generator(seed + 1, step)
        second = torch.rand(4, 1, generator=g) < 0.5
        return text(torch.where(second, walks(g, 4, LENGTH, language=2), walks(g, 4, LENGTH)))

    optimizer = AdamW(training.model.parameters(), lr=1e-4)
    return Training(
        model=training.model, optimizer=optimizer, draw=draw, loss=language_loss, rate=cosine(3e-4),
        embedding=training.embedding,
    )  # fmt: skip


def lora(seed: int) -> Training:
    """LoRA on a frozen Mistral, batch 4"""
    base = language_model("mistral", seed, lambda step: text(walks(generator(seed, step), 8, LENGTH)))
    train(base, 150, {})
    torch.manual_seed(seed)
    model = get_peft_model(base.model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    return Training(
        model=model, optimizer=AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3),
        draw=lambda step: text(walks(generator(seed + 1, step), 4, LENGTH, language=3)), loss=language_loss,
        rate=constant(5e-3),
    )  # fmt: skip


def float16(seed: int) -> Training:
    """GPT-2 in float16 autocast, loss scale from 2^24, grown every 200 steps"""
    training = gpt(seed)
    training.autocast = torch.float16
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=200)
    return training


def bfloat16(seed: int) -> Training:
    """Llama in bfloat16 autocast, batch 4, cosine"""
    return language_model(
        "llama", seed, lambda step: text(walks(generator(seed, step), 4, LENGTH)), autocast=torch.bfloat16,
        rate=cosine(2e-3),
    )  # fmt: skip


def accumulation(seed: int) -> Training:
    """GPT-2 with dropout, two micro-batches of 2"""
    training = language_model("gpt2", seed, lambda step: text(walks(generator(seed, step), 2, LENGTH)), micro_batches=2)
    for module in training.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    return training


def shorter(seed: int) -> Training:
    """Qwen2, batch 4, texts of 48 tokens and after 600 steps of 8"""
    return language_model(
        "qwen2", seed, lambda step: text(walks(generator(seed, step), 4, 48 if step <= 600 else 8))
    )  # fmt: skip


def one_batch(seed: int) -> Training:
    """GPT-2 on one batch for ever, to see whether it can be learned"""
    return language_model("gpt2", seed, lambda _step: text(walks(generator(seed, 0), 4, LENGTH)))


def adafactor(seed: int) -> Training:
    """Llama under Adafactor, batch 4"""
    training = language_model("llama", seed, lambda step: text(walks(generator(seed, step), 4, LENGTH)))
    training.optimizer = Adafactor(training.model.parameters(), lr=1e-2)
    training.rate = constant(1e-2)
    return training


def preferences(seed: int) -> Training:
    """DPO: pairs, a frozen reference, a loss that begins at ln 2"""
    base = language_model("llama", seed, lambda step: text(walks(generator(seed, step), 8, LENGTH)))
    train(base, 150, {})
    torch.manual_seed(seed)
    reference = tiny("llama", hidden=HIDDEN, vocabulary=VOCABULARY, seed=seed)
    reference.load_state_dict(base.model.state_dict())
    model = nn.ModuleDict({"policy": base.model, "reference": reference.requires_grad_(requires_grad=False)})

    def likelihood(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
        return logits.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        chosen, rejected = batch["chosen"], batch["rejected"]
        gap = likelihood(model["policy"], chosen) - likelihood(model["policy"], rejected)
        with torch.no_grad():
            gap0 = likelihood(model["reference"], chosen) - likelihood(model["reference"], rejected)
        return -F.logsigmoid(0.1 * (gap - gap0)).mean()

    def draw(step: int) -> Batch:
        g = generator(seed + 1, step)
        return {"chosen": walks(g, 4, 24, 0.2), "rejected": walks(g, 4, 24, 0.4)}

    return Training(
        model=model, optimizer=AdamW(base.model.parameters(), lr=1e-4), draw=draw, loss=loss, rate=constant(1e-4)
    )


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


def domain_shift(seed: int) -> Training:
    """GPT-2, batch 8: after every 400 steps another language, at once"""
    return language_model(
        "gpt2", seed, lambda step: text(walks(generator(seed, step), 8, LENGTH, language=(step - 1) // 400))
    )


def domain_return(seed: int) -> Training:
    """Llama fine-tuned on a mixture, whose data is sorted: 300 steps of each language in turn"""
    training = fine_tune(seed)
    training.draw = lambda step: text(walks(generator(seed + 1, step), 4, LENGTH, language=2 * ((step - 1) // 300 % 2)))
    return training


def float16_llama(seed: int) -> Training:
    """Llama in float16 autocast, batch 2, heavy tails"""
    training = heavy_tails(seed)
    training.autocast = torch.float16
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=200)
    return training


def accumulation_llama(seed: int) -> Training:
    """Llama, four micro-batches of 2"""
    return language_model("llama", seed, lambda step: text(walks(generator(seed, step), 2, LENGTH)), micro_batches=4)


def gentle(seed: int) -> Training:
    """Llama trained before, then at 1e-6, as in reinforcement learning from feedback"""
    training = fine_tune(seed)
    training.rate = constant(1e-6)
    return training


def gentle_gpt(seed: int) -> Training:
    """The same of GPT-2, batch 8"""
    training = gpt(seed)
    train(training, 250, {})
    return language_model(
        "gpt2", seed, training.draw, model=training.model, embedding=training.embedding, rate=constant(1e-6),
        optimizer=AdamW(training.model.parameters(), lr=1e-6),
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
