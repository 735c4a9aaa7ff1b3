"""Distil a two-layer GPT-2 into a one-layer one on the calls that a coxswain shouts during a race."""
import math
import random

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

STEPS = 40
PERIOD = 36
HOTTEST = 4.0
ALPHA = 0.7

CALLS = ["<end>", "easy", "all", "sit", "ready", "row", "power", "ten", "in", "two", "one", "on", "this",
         "catch", "length", "bow", "side", "stroke", "down", "hold", "water", "up", "rate", "walk", "through"]


def race(rng, length=20):
    tokens = []
    while len(tokens) < length:
        kind = rng.randrange(4)
        if kind == 0:
            tokens += ["power", "ten", "in", "two", "one", "on", "this", "catch"]
        elif kind == 1:
            tokens += ["rate", rng.choice(["up", "down"]), "in", "two", "one"]
        elif kind == 2:
            tokens += [rng.choice(["bow", "stroke"]), "side", "hold", "water"]
        else:
            tokens += ["sit", "ready", "row", "walk", "through", "<end>"]
    return [CALLS.index(word) for word in tokens[:length]]


def build(layers, width, spread):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=len(CALLS), n_positions=24, n_embd=width, n_layer=layers, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=spread,
        bos_token_id=0, eos_token_id=0))


def softness(k):
    """The temperature swings between HOTTEST and sharp labels, once in PERIOD steps."""
    return HOTTEST * 0.5 * (1.0 + math.cos(2.0 * math.pi * k / PERIOD))


def distil():
    torch.manual_seed(11)
    rng = random.Random(11)
    teacher = build(2, 32, 0.25).eval().requires_grad_(False)
    student = build(1, 24, 0.05)
    opt = torch.optim.AdamW(student.parameters(), lr=4e-3, weight_decay=0.01)

    for k in range(STEPS):
        batch = torch.tensor([race(rng) for _ in range(8)])
        with torch.no_grad():
            taught = teacher(batch).logits[:, :-1]
        said = student(batch).logits[:, :-1]

        heat = softness(k)
        log_q = F.log_softmax(said / heat, dim=-1)
        log_p = F.log_softmax(taught / heat, dim=-1)
        soft = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1).mean() * heat ** 2
        hard = F.cross_entropy(said.reshape(-1, len(CALLS)), batch[:, 1:].reshape(-1))
        loss = ALPHA * soft + (1.0 - ALPHA) * hard

        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"step {k + 1:2d}  heat {heat:.3f}  soft {soft.item():.4f}  hard {hard.item():.4f}  loss {loss.item():.4f}")

    print(f"sum of squared student weights: {sum((p.double() ** 2).sum() for p in student.parameters()).item():.4f}")


if __name__ == "__main__":
    distil()
