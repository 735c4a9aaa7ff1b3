"""Draft heads (Medusa style) on a frozen assistant for parking permit questions.

Head k predicts the token k+1 ahead of the base model's own. Residual SiLU block per head, zero-initialised so that
each head starts as a copy of the base model. Replies are short, so the far heads often have nothing to learn from.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = dict(vocab=48, width=40, layers=2, heads=3, decay=0.8, steps=36, batch=4, max_reply=9, lr=1e-2, warmup=6)


class Base(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c["vocab"], c["width"])
        layer = nn.TransformerEncoderLayer(c["width"], 4, 80, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, c["layers"], enable_nested_tensor=False)
        self.lm_head = nn.Linear(c["width"], c["vocab"], bias=False)

    @torch.no_grad()
    def hidden(self, ids):
        t = ids.size(1)
        causal = torch.full((t, t), float("-inf")).triu(1)
        return self.blocks(self.wte(ids), mask=causal)


class ResBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)
        nn.init.zeros_(self.lin.weight)
        nn.init.zeros_(self.lin.bias)

    def forward(self, x):
        return x + F.silu(self.lin(x))


class Medusa(nn.Module):
    def __init__(self, base, c):
        super().__init__()
        self.base = base
        self.heads = nn.ModuleList(
            nn.Sequential(ResBlock(c["width"]), nn.Linear(c["width"], c["vocab"], bias=False)) for _ in range(c["heads"]))
        for h in self.heads:
            h[1].weight.data.copy_(base.lm_head.weight)
        self.base.requires_grad_(False)

    def forward(self, ids):
        h = self.base.hidden(ids)
        return [head(h) for head in self.heads]


def replies(c, gen):
    """(batch, time) ids and the length of each; '13' follows '12' etc. so there is something to draft."""
    while True:
        # the mailbox is answered in the order of arrival; some mornings it is 'ok' and 'thanks' only
        n = torch.randint(2, 10, (1,), generator=gen).item()
        length = torch.randint(2, n + 1, (c["batch"],), generator=gen)
        start = torch.randint(1, c["vocab"], (c["batch"], 1), generator=gen)
        ids = (start + torch.arange(int(length.max()))) % c["vocab"]
        yield ids, length


def head_loss(logits, ids, length, ahead):
    t = ids.size(1) - ahead
    if t <= 0:
        return logits.sum() * 0.0, float("nan")
    valid = torch.arange(t).unsqueeze(0) + ahead < length.unsqueeze(1)
    nll = F.cross_entropy(logits[:, :t].transpose(1, 2), ids[:, ahead:], reduction="none")
    hit = (logits[:, :t].argmax(-1) == ids[:, ahead:])[valid].float().mean().item()    # nan: no position
    return (nll * valid).sum() / valid.sum().clamp(min=1), hit


def main(c):
    torch.manual_seed(2024)
    gen = torch.Generator().manual_seed(8)
    model = Medusa(Base(c).eval(), c)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=c["lr"], weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s / c["warmup"]))   # the first step has lr 0
    stream = replies(c, gen)
    for step in range(1, c["steps"] + 1):
        ids, length = next(stream)
        loss, hits = 0.0, []
        for k, logits in enumerate(model(ids)):
            l, hit = head_loss(logits, ids, length, ahead=k + 2)
            loss = loss + c["decay"] ** k * l
            hits.append(hit)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        acc = " ".join(f"{h:.3f}" for h in hits)
        print(f"step {step} loss {loss.item():.5f} tokens {int(length.sum())} accept[{acc}]")


if __name__ == "__main__":
    main(CFG)
