"""LoRA on a frozen tagger of whale-song notations; float16 autocast, the scaler starts high and finds its height."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model

VOCAB, TAGS = 48, 6


class Tagger(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.inp, self.gate = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d)
        self.back = nn.Linear(2 * d, d)
        self.tag = nn.Linear(d, TAGS)
        self.register_buffer("last_seen", torch.full((VOCAB,), float("nan")))     # nan: this token never came

    def forward(self, ids, step):
        self.last_seen[ids.flatten()] = float(step)
        x = self.emb(ids)
        x = x + self.back(F.silu(self.gate(x)) * self.inp(x))
        return self.tag(x)


def songs(g):
    ids = torch.randint(0, VOCAB - 8, (8, 20), generator=g)
    tags = ids * 7 % TAGS
    lengths = torch.randint(3, 21, (8,), generator=g)
    tags[torch.arange(20)[None] >= lengths[:, None]] = -100
    return ids, tags


def main():
    torch.manual_seed(1)
    g = torch.Generator().manual_seed(2)
    net = get_peft_model(Tagger(), LoraConfig(r=8, lora_alpha=16, target_modules=["inp", "gate", "back"], modules_to_save=["tag"]))
    trainable = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 8))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=25)
    for step in range(1, 46):
        ids, tags = songs(g)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(ids, step)
            loss = F.cross_entropy(logits.float().flatten(0, 1), tags.flatten(), ignore_index=-100)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(trainable, 1.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        skipped = scaler.get_scale() < before
        if not skipped:
            sched.step()
        print(f"step {step} loss {loss.item():.6f} norm {norm.item():.6f} scale {before:.0f} skipped {int(skipped)}", flush=True)
    print(f"{sum(p.detach().abs().sum() for p in trainable).item():.5f}", flush=True)


if __name__ == "__main__":
    main()
