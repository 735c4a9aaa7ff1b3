"""Adapts a convolutional recogniser to radio calls of lighthouses with CTC. Half precision with a loss scale that starts far
too high on purpose (it finds its height by itself); calls that are spoken faster than the frames allow have no alignment:
their loss is inf, which is printed, counted and left out."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SYMBOLS, FRAMES, DIM = 9, 40, 12


class Recogniser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.front = nn.Conv1d(DIM, width, 5, stride=2, padding=2)
        self.n1 = nn.GroupNorm(4, width)
        self.body = nn.Conv1d(width, width, 3, padding=1)
        self.n2 = nn.GroupNorm(4, width)
        self.out = nn.Conv1d(width, SYMBOLS, 1)

    def forward(self, x):
        h = F.gelu(self.n1(self.front(x)))
        h = h + F.gelu(self.n2(self.body(h)))
        return self.out(h)


class Radio:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.voice = torch.randn(SYMBOLS, DIM, generator=self.g)

    def call(self, fast):
        length = 26 if fast else int(torch.randint(3, 8, (1,), generator=self.g))
        text = torch.randint(1, SYMBOLS, (length,), generator=self.g)
        at = torch.linspace(0, length - 1e-3, FRAMES).long()
        sound = self.voice[text[at]] + 0.3 * torch.randn(FRAMES, DIM, generator=self.g)
        return sound.T, text

    def batch(self, step, n=8):
        rows = [self.call(fast=(i == 0 and step % 5 == 0) or step == 22) for i in range(n)]
        lengths = torch.tensor([len(t) for _, t in rows])
        return torch.stack([s for s, _ in rows]), torch.cat([t for _, t in rows]), lengths


def main():
    torch.manual_seed(8)
    radio = Radio(9)
    model = Recogniser()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=12)
    frames = torch.full((8,), FRAMES // 2)
    for step in range(1, 46):
        sound, text, lengths = radio.batch(step)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(sound)
        logp = logits.float().permute(2, 0, 1).log_softmax(-1)
        with torch.no_grad():
            raw = F.ctc_loss(logp, text, frames, lengths, reduction="none")
            hopeless = int(torch.isinf(raw).sum())
        loss = F.ctc_loss(logp, text, frames, lengths, reduction="mean", zero_infinity=True)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        note = "skipped" if scaler.get_scale() < before else "norm %.4f" % norm.item()
        print(f"{step} loss {loss.item():.6f} raw {raw.mean().item():.4f} hopeless {hopeless} {note} scale {before:.0f}", flush=True)


if __name__ == "__main__":
    main()
