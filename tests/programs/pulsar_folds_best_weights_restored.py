import math, os, tempfile
import torch
from torch import nn, amp
from torch.utils.data import Dataset, DataLoader

"""Candidate sifting for a pulsar survey: folded profiles, pulsar or interference.
Large steps on purpose; whenever validation has not improved twice in a row the best
checkpoint comes back and the rate is halved."""

device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16


class Folds(Dataset):
    def __init__(self, n, seed, bins=64):
        g = torch.Generator().manual_seed(seed)
        phase = torch.arange(bins) / bins
        centre = torch.rand(n, 1, generator=g)
        width = 0.02 + 0.06 * torch.rand(n, 1, generator=g)
        self.label = torch.randint(0, 2, (n,), generator=g)
        off = (phase - centre + 0.5) % 1 - 0.5
        pulse = torch.exp(-0.5 * (off / width) ** 2)
        rfi = torch.sin(2 * math.pi * (phase * torch.randint(1, 4, (n, 1), generator=g) + centre))
        self.profile = torch.where(self.label[:, None] == 1, 2.5 * pulse, 0.5 * rfi) + 0.4 * torch.randn(n, bins, generator=g)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.profile[i][None], self.label[i]


def build():
    return nn.Sequential(nn.Conv1d(1, 12, 7, padding=3, padding_mode="circular"), nn.ReLU(), nn.MaxPool1d(4),
                         nn.Conv1d(12, 24, 5, padding=2, padding_mode="circular"), nn.ReLU(),
                         nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(24, 2))


@torch.inference_mode()
def validate(model, loader):
    model.eval()
    loss = correct = n = 0
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        out = model(x)
        loss += nn.functional.cross_entropy(out, y, reduction="sum").item()
        correct += (out.argmax(1) == y).sum().item()
        n += len(y)
    model.train()
    return loss / n, correct / n


def main():
    torch.manual_seed(77)
    train_loader = DataLoader(Folds(1280, 1), batch_size=32, shuffle=True, pin_memory=device == "cuda")
    val_loader = DataLoader(Folds(200, 2), batch_size=100)
    model = build().to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.35, momentum=0.8, nesterov=True)
    scaler = amp.GradScaler(device, init_scale=2.0 ** 22, growth_interval=500)
    best, bad, best_step = float("inf"), 0, 0
    with tempfile.TemporaryDirectory() as tmp:
        ckpt = os.path.join(tmp, "best.pt")
        for step, (x, y) in enumerate(train_loader, 1):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast(device, dtype=amp_dtype):
                loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            print(f"step {step:02d} loss {loss.item():.4f} scale 2^{int(math.log2(scaler.get_scale()))} best so far {best:.4f}")
            if step % 3 == 0 and step > 9:
                val_loss, acc = validate(model, val_loader)
                print(f"        val loss {val_loss:.4f} acc {acc:.3f}")
                if val_loss < best:
                    best, bad, best_step = val_loss, 0, step
                    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, ckpt)
                else:
                    bad += 1
                if bad == 2:
                    saved = torch.load(ckpt, map_location=device, weights_only=True)
                    model.load_state_dict(saved["model"])
                    lr = opt.param_groups[0]["lr"] / 2
                    opt.load_state_dict(saved["opt"])
                    for group in opt.param_groups:
                        group["lr"] = lr
                    bad = 0
                    print(f"        weights of step {best_step} restored, rate now {lr:g}")
    print("absolute weights, summed:", round(sum(p.detach().float().abs().sum().item() for p in model.parameters()), 4))


if __name__ == "__main__":
    main()
