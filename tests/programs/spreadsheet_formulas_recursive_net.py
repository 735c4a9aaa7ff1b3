#!/usr/bin/env python
"""A recursive network that reads spreadsheet formulas and guesses their value (squashed), cell references included.
Every inner node has to guess the value of its sub-formula as well."""
import ast
import math
import random

import torch
import torch.nn as nn
from tqdm import tqdm

OPS = {ast.Add: 0, ast.Sub: 1, ast.Mult: 2, ast.USub: 3}
CELLS = {f"{c}{r}": i for i, (c, r) in enumerate((c, r) for c in "ABC" for r in range(1, 5))}


def write_formula(rng, depth):
    if depth == 0 or rng.random() < 0.16 * (3 - min(depth, 3)):
        return rng.choice(list(CELLS)) if rng.random() < 0.7 else str(rng.randint(0, 9))
    if rng.random() < 0.12:
        return f"-({write_formula(rng, depth - 1)})"
    op = rng.choice("+-*")
    return f"({write_formula(rng, depth - 1)} {op} {write_formula(rng, depth - 1)})"


def workbook(rng, sheets):
    """Formulas of one sheet per step; users nest deeper at the beginning of a book and are brief at the end."""
    for s in range(sheets):
        depth = 3 if s < sheets // 3 else 2 if s < 2 * sheets // 3 else 1
        yield [write_formula(rng, depth) for _ in range(6)] if depth > 1 else \
            [write_formula(rng, rng.choice((0, 1, 2))) for _ in range(6)]


def evaluate(node, cells):
    if isinstance(node, ast.Constant):
        return float(node.value)
    if isinstance(node, ast.Name):
        return cells[node.id]
    if isinstance(node, ast.UnaryOp):
        return -evaluate(node.operand, cells)
    a, b = evaluate(node.left, cells), evaluate(node.right, cells)
    return a + b if isinstance(node.op, ast.Add) else a - b if isinstance(node.op, ast.Sub) else a * b


class Reader(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.cell = nn.Embedding(len(CELLS), width)
        self.number = nn.Linear(1, width)
        self.op = nn.Embedding(len(OPS), width)
        self.combine = nn.Sequential(nn.Linear(3 * width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width), nn.Tanh())
        self.guess = nn.Linear(width, 1)

    def encode(self, node, inner):
        if isinstance(node, ast.Constant):
            return self.number(torch.tensor([node.value / 10.0]))
        if isinstance(node, ast.Name):
            return self.cell(torch.tensor(CELLS[node.id]))
        if isinstance(node, ast.UnaryOp):
            a = self.encode(node.operand, inner)
            b, code = torch.zeros_like(a), OPS[type(node.op)]
        else:
            a, b, code = self.encode(node.left, inner), self.encode(node.right, inner), OPS[type(node.op)]
        h = self.combine(torch.cat([a, b, self.op(torch.tensor(code))]))
        inner.append((node, h))
        return h

    def forward(self, formula, cells):
        tree = ast.parse(formula, mode="eval").body
        inner = []
        root = self.encode(tree, inner)
        top = (self.guess(root).squeeze() - squash(evaluate(tree, cells))) ** 2
        deep = torch.stack([(self.guess(h).squeeze() - squash(evaluate(n, cells))) ** 2 for n, h in inner])
        return top + 0.3 * deep.mean()


def squash(v):
    return math.copysign(math.log1p(abs(v)), v)


def main():
    rng = random.Random(9)
    torch.manual_seed(9)
    cells = {name: round(rng.uniform(-6, 6), 2) for name in CELLS}
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step, formulas in enumerate(tqdm(list(workbook(rng, 60)), disable=True), start=1):
        optimizer.zero_grad()
        losses = [model(f, cells) for f in formulas]
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        print(f"sheet {step} loss {loss.item():.6f} longest {max(map(len, formulas))}", flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.4f}")


if __name__ == "__main__":
    main()
