"""Dial reader for water meters that will end on a microcontroller: quantization-aware training with our own observer,
a bfloat16 trunk, a float64 angle head, data from one forked worker, and a scripted loss."""
import random
import warnings

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")   # script is deprecated, the firmware people still want it

    @torch.jit.script
    def circular_loss(pred: Tensor, angle: Tensor, margin: float) -> Tensor:
        unit = pred / ((pred.square().sum(1, keepdim=True) + 1e-9).sqrt())
        cos = unit[:, 0] * torch.cos(angle) + unit[:, 1] * torch.sin(angle)
        # negative when the reading is good; the margin only shifts it
        return -(cos - margin).mean()


class FakeQuant(nn.Module):
    """Min/max observer with an inverted initial range (inf, -inf) until it has seen something."""

    def __init__(self):
        super().__init__()
        self.register_buffer("lo", torch.tensor(float("inf")))
        self.register_buffer("hi", torch.tensor(float("-inf")))
        self.enabled = False

    def forward(self, x):
        if self.training:
            self.lo.copy_(torch.minimum(self.lo, x.detach().amin().float()))
            self.hi.copy_(torch.maximum(self.hi, x.detach().amax().float()))
        if not self.enabled:
            return x
        scale = ((self.hi - self.lo) / 255).clamp_min(1e-8)
        zero = (-self.lo / scale).round().clamp(0, 255).to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(x.float(), scale, zero, 0, 255).to(x.dtype)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU()).bfloat16()
        self.fq = FakeQuant()
        self.unused_date_window = nn.Linear(3, 3)   # never gets a gradient, the next product has it
        self.head = nn.Linear(8 * 3 * 3, 2).double()

    def forward(self, img):
        h = self.fq(self.trunk(img.bfloat16()))
        return self.head(h.flatten(1).double())


class Dials(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(i)
        a = rng.uniform(-3.1, 3.1)
        ys, xs = torch.meshgrid(torch.arange(15.0) - 7, torch.arange(15.0) - 7, indexing="ij")
        along = xs * torch.cos(torch.tensor(a)) + ys * torch.sin(torch.tensor(a))
        across = -xs * torch.sin(torch.tensor(a)) + ys * torch.cos(torch.tensor(a))
        img = torch.exp(-across.square()) * (along > 0)
        return img[None], torch.tensor(a, dtype=torch.float64)


def evaluate(net, data):
    net.eval()
    with torch.inference_mode():
        imgs, a = zip(*(data[i] for i in range(900, 932)))
        p = net(torch.stack(imgs))
        err = torch.atan2(p[:, 1], p[:, 0]) - torch.stack(a)
        err = torch.atan2(err.sin(), err.cos()).abs().mean().item()
    net.train()
    return err


def main():
    torch.manual_seed(77)
    net = Reader()
    opt = torch.optim.AdamW([
        {"params": net.trunk.parameters(), "lr": 4e-3, "weight_decay": 0.0},
        {"params": net.head.parameters(), "lr": 2e-2},
        {"params": net.unused_date_window.parameters()}])
    loader = DataLoader(Dials(32 * 20), batch_size=32, num_workers=1, multiprocessing_context="fork")
    step = 0
    for epoch in range(2):
        for img, angle in loader:
            step += 1
            if step == 12:
                net.fq.enabled = True
            opt.zero_grad()
            loss = circular_loss(net(img), angle, 0.1)
            loss.backward()
            opt.step()
            if step % 2 == 0:
                print(f"step {step:2d} loss {loss.item():+.6f} range {net.fq.hi.item() - net.fq.lo.item():.4f}")
        print(f"epoch {epoch} held-out error {evaluate(net, Dials(1000)):.5f} rad")
    print(f"sum {sum(p.detach().double().sum().item() for p in net.parameters()):.5f}")


if __name__ == "__main__":
    main()
