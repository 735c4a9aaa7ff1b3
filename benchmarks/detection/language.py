"""Language models in the benchmark: Llama and GPT-2 on walks through a permutation of words, trained as people do."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from detection.training import Batch, Training, train
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.optim import Adafactor, AdamW

from finitune.gym.models import tiny

VOCABULARY, HIDDEN, LENGTH = 128, 32, 32
STEPS = 1200
"""Of every healthy run; schedules end here."""


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
