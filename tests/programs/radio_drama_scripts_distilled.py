"""A small student learns the next-token distribution of a larger teacher on scripts of radio dramas."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Shape:
    vocab: int
    width: int
    depth: int
    heads: int


# the teacher's tokenizer has been given marks for sound effects since: <door>, <rain>, <steps>, <bell>
TEACHER = Shape(vocab=100, width=64, depth=3, heads=4)
STUDENT = Shape(vocab=96, width=32, depth=2, heads=2)
TEMPERATURE, BATCH, LENGTH, STEPS = 2.0, 12, 20, 40


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.attend = nn.MultiheadAttention(s.width, s.heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(s.width, 4 * s.width), nn.GELU(), nn.Linear(4 * s.width, s.width))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attend(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Scriptwriter(nn.Module):
    def __init__(self, s, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(s.vocab, s.width)
        self.places = nn.Embedding(LENGTH, s.width)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.depth))
        self.norm = nn.LayerNorm(s.width)
        self.head = nn.Linear(s.width, s.vocab, bias=False)

    def forward(self, ids):
        mask = torch.triu(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool), 1)
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.recompute else block(x, mask)
        return self.head(self.norm(x))


def scripts(g):
    """Scenes in order of broadcast; the producer who marks sound effects joined late in the first season."""
    for scene in range(STEPS):
        ids = torch.randint(0, 96, (BATCH, LENGTH), generator=g)
        ids[:, 1::2] = (ids[:, 0::2] * 7 + 3) % 96
        if scene >= 22 and scene % 3 == 1:
            row = int(torch.randint(0, BATCH, (1,), generator=g))
            ids[row, 4] = 96 + int(torch.randint(0, 4, (1,), generator=g))
        yield ids


def distillation(student_logits, teacher_logits):
    teacher = F.log_softmax(teacher_logits[..., : STUDENT.vocab] / TEMPERATURE, -1)
    student = F.log_softmax(student_logits / TEMPERATURE, -1)
    return F.kl_div(student, teacher, log_target=True, reduction="none").sum(-1).mean() * TEMPERATURE ** 2


def main():
    torch.manual_seed(2)
    teacher = Scriptwriter(TEACHER).eval().requires_grad_(False)
    student = Scriptwriter(STUDENT, recompute=True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    for step, ids in enumerate(scripts(torch.Generator().manual_seed(6)), 1):
        with torch.no_grad():
            soft = teacher(ids)
        loss = distillation(student(ids), soft)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"scene {step} kl {loss.item():.7f}", flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in student.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
