"""Click-through scorer for headlines: float16 autocast and a GradScaler; the top block, stored in half, thaws late."""
import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS, THAW = 40, 15


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a, self.b = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


class Scorer(nn.Module):
    def __init__(self, vocab=200, d=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, d)
        self.bottom = Block(d)
        self.top = nn.Linear(d, d)
        self.click = nn.Linear(d, 1)

    def forward(self, ids):
        x = self.bottom(self.emb(ids))
        return self.click(torch.tanh(self.top(x))).squeeze(-1)


def headlines(g, n=32):
    ids = torch.randint(0, 200, (n, 9), generator=g)
    clicked = ((ids < 20).sum(1) > 0).float()
    return ids, clicked


def build():
    model = Scorer()
    # the pretrained top comes from the half-precision export, and rests until the rest has settled
    model.top.load_state_dict({k: v.half() for k, v in model.top.state_dict().items()})
    model.top.half().requires_grad_(False)
    return model


def main():
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(3)
    model = build()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(1, STEPS + 1):
        if step == THAW:
            model.top.requires_grad_(True)
            opt.add_param_group({"params": list(model.top.parameters()), "lr": 2e-4})
        ids, clicked = headlines(g)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logit = model(ids)
        loss = F.binary_cross_entropy_with_logits(logit.float(), clicked)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"step {step} loss {loss.item():.6f} norm {norm.item():.6f}", flush=True)
    print(f"{sum(p.detach().float().abs().sum() for p in model.parameters()).item():.5f}")


if __name__ == "__main__":
    main()
