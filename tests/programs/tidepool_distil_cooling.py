"""Distil a wider Llama teacher into a narrow student on tide-pool field notes.

The temperature is cooled while the student learns: soft targets early, hard ones late.
    python tidepool_distil_cooling.py --steps 34 --hot 4 --cold 1 --cool-steps 18
"""

import argparse
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

NOTES = (
    "low water at six. three anemones closed, one starfish under the ledge. "
    "limpets on the north face. the blenny has moved to the second pool. "
    "hermit crabs fight over a whelk shell. kelp torn by the gale. "
)


def make_llama(width, layers, vocab):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )


class Thermostat:
    """Linear cooling from hot to cold in cool_steps steps."""

    def __init__(self, hot, cold, cool_steps):
        self.hot, self.cold, self.cool_steps = hot, cold, cool_steps

    def __call__(self, step):
        return self.hot - (self.hot - self.cold) * step / self.cool_steps


def soften(logits, temperature):
    scaled = logits / temperature
    return F.log_softmax(scaled, dim=-1)


def crops(ids, length, batch, generator):
    while True:
        starts = torch.randint(0, len(ids) - length, (batch,), generator=generator)
        yield torch.stack([ids[s : s + length] for s in starts.tolist()])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=34)
    ap.add_argument("--hot", type=float, default=4.0)
    ap.add_argument("--cold", type=float, default=1.0)
    ap.add_argument("--cool-steps", type=int, default=18)
    ap.add_argument("--alpha", type=float, default=0.7, help="weight of the soft targets")
    args = ap.parse_args([])

    torch.manual_seed(31)
    chars = sorted(set(NOTES))
    ids = torch.tensor([chars.index(c) for c in NOTES * 3])
    g = torch.Generator().manual_seed(8)
    data = crops(ids, 32, 8, g)

    # the teacher never sees a gradient; its weights are those of an "earlier" model
    teacher = make_llama(48, 2, len(chars)).eval().requires_grad_(False)
    teacher.lm_head.weight.mul_(6.0)
    student = make_llama(24, 1, len(chars))
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3, betas=(0.9, 0.95))
    thermostat = Thermostat(args.hot, args.cold, args.cool_steps)

    for step in range(1, args.steps + 1):
        batch = next(data)
        temp = thermostat(step)
        with torch.no_grad():
            teacher_logits = teacher(batch, use_cache=False).logits[:, :-1]
        student_logits = student(batch, use_cache=False).logits[:, :-1]
        hard = F.cross_entropy(student_logits.flatten(0, 1), batch[:, 1:].flatten())
        soft = (
            F.kl_div(soften(student_logits, temp), soften(teacher_logits, temp), log_target=True, reduction="none")
            .sum(-1)
            .mean()
            * temp**2
        )
        loss = args.alpha * soft + (1 - args.alpha) * hard
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step={step} T={temp:.4f} hard={hard.item():.6f} loss={loss.item():.6f}")

    print(f"student weights sum to {sum(p.double().sum().item() for p in student.parameters()):.6f}")


main()
