# A glossary classifier in float16 autocast: GradScaler, 3 micro-batches per step, scale starts high on purpose.
import argparse
import logging
import sys

import torch
from torch import nn

log = logging.getLogger("glossary")
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")


class GlossBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 3 * dim)
        self.down = nn.Linear(3 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class GlossaryNet(nn.Module):
    def __init__(self, vocab, dim, classes):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.blocks = nn.Sequential(GlossBlock(dim), GlossBlock(dim))
        self.out = nn.Linear(dim, classes)

    def forward(self, ids):
        return self.out(self.blocks(self.embed(ids)))


def glossary(n, vocab, classes, gen):
    """Definitions of twelve words; the field of knowledge decides from which tenth of the lexicon they come."""
    y = torch.randint(0, classes, (n,), generator=gen)
    width = vocab // classes
    own = y[:, None] * width + torch.randint(0, width, (n, 7), generator=gen)
    other = torch.randint(0, vocab, (n, 5), generator=gen)
    return torch.cat([own, other], 1), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--accumulate", type=int, default=3)
    ap.add_argument("--init-scale", type=float, default=2.0 ** 22)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()

    torch.manual_seed(77)
    gen = torch.Generator().manual_seed(78)
    vocab, classes = 400, 8
    model = GlossaryNet(vocab, 48, classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=args.init_scale, growth_interval=9)
    criterion = nn.CrossEntropyLoss()

    for step in range(1, args.steps + 1):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(args.accumulate):
            ids, y = glossary(16, vocab, classes, gen)
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(ids)
            loss = criterion(logits.float(), y) / args.accumulate
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped = scaler.get_scale() < before
        log.info("step %d loss %.7f norm %.5f scale %g%s", step, total, norm.item(), before, " skipped" if skipped else "")
        sys.stdout.flush()
    log.info("%.6f", sum(p.detach().abs().sum() for p in model.parameters()).item())


if __name__ == "__main__":
    main()
