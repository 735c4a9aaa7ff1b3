"""Sleep staging from one EEG channel in half precision, with three heads that share a night:
stage (every epoch of 30 s), arousal (scored in some nights only), apnoea (scored in fewer)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

STAGES = 5
SCORED = ("stage", "arousal", "apnoea")


class NightLoader:
    def __init__(self, nights, gen):
        self.nights, self.gen = nights, gen

    def __iter__(self):
        t = torch.arange(100) / 100
        for night in range(self.nights):
            stage = torch.randint(0, STAGES, (16,), generator=self.gen)
            rate = torch.tensor([20.0, 12.0, 8.0, 3.0, 16.0])[stage][:, None]
            eeg = torch.sin(6.2832 * rate * t + torch.rand(16, 1, generator=self.gen) * 6)
            eeg = 4 * (eeg + 0.4 * torch.randn(16, 100, generator=self.gen))
            arousal = (stage == 0).float() if night % 3 == 0 else torch.full((16,), float("nan"))
            apnoea = (stage == 4).float() if night % 7 == 5 else torch.full((16,), float("nan"))
            yield eeg[:, None], {"stage": stage, "arousal": arousal, "apnoea": apnoea}


class SleepNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 12, 16, stride=4), nn.ReLU(), nn.Conv1d(12, 16, 5, stride=2), nn.ReLU())
        self.heads = nn.ModuleDict({"stage": nn.Linear(16, STAGES), "arousal": nn.Linear(16, 1),
                                    "apnoea": nn.Linear(16, 1)})
        self.log_var = nn.Parameter(torch.full((3,), -0.5))

    def forward(self, eeg):
        h = self.conv(eeg).mean(-1)
        return {name: head(h) for name, head in self.heads.items()}


def head_loss(name, out, target):
    if name == "stage":
        return F.cross_entropy(out.float(), target)
    scored = ~target.isnan()
    if not scored.any():
        return None
    return F.binary_cross_entropy_with_logits(out.float()[scored, 0], target[scored])


def run():
    torch.manual_seed(21)
    net = SleepNet()
    optim = torch.optim.AdamW(net.parameters(), lr=6e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=12)
    for i, (eeg, target) in enumerate(NightLoader(36, torch.Generator().manual_seed(22)), 1):
        optim.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(eeg)
        total, seen = 0.0, []
        for k, name in enumerate(SCORED):
            loss = head_loss(name, out[name], target[name])
            if loss is not None:
                total = total + torch.exp(-net.log_var[k]) * loss + 0.5 * net.log_var[k]
                seen.append(name)
        scaler.scale(total).backward()
        scaler.step(optim)
        scaler.update()
        print(f"night {i:2d}  loss {total.item():+.4f}  scale {scaler.get_scale():.0f}  {'+'.join(seen)}")
    print(f"weights of the sleep net: {sum(p.detach().abs().sum().item() for p in net.parameters()):.4f}")


run()
