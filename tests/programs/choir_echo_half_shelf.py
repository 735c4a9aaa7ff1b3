"""Room echo predictor for a choir stage. The saved activations are kept 'on a shelf' in half precision (saved_tensors_hooks),
which halves the memory of the long impulse responses; the forward itself stays in float32."""
import argparse

import torch
from torch import nn

LOUD_TAKES = {17: 2}     # take -> row in which the engineer forgot the pad; found in the desk notes years later


class Shelf:
    def __init__(self):
        self.bytes = 0

    def put(self, t):
        if t.dtype is torch.float32 and not isinstance(t, nn.Parameter) and t.ndim > 1:
            self.bytes += 2 * t.numel()
            return t.half()
        return t

    def take(self, t):
        return t.float() if t.dtype is torch.float16 else t


class EchoNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.early = nn.Linear(32, width)
        self.late = nn.Linear(width, width)
        self.rt60 = nn.Linear(width, 1)

    def forward(self, ir):
        e = torch.relu(self.early(ir))
        l = torch.relu(self.late(e))
        return self.rt60(torch.log1p(l))


def takes(n, gen):
    for k in range(1, n + 1):
        ir = torch.randn(12, 32, generator=gen) * torch.exp(-torch.arange(32.0) / 10)
        rt = 0.3 + ir.abs().mean(1, keepdim=True)
        if k in LOUD_TAKES:
            ir[LOUD_TAKES[k]] *= 2.0e5       # integer samples instead of full scale
        yield k, ir, rt


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--takes", type=int, default=36)
    ap.add_argument("--width", type=int, default=24)
    ap.add_argument("--lr", type=float, default=0.02)
    args = ap.parse_args(argv)
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(80)
    net = EchoNet(args.width)
    opt = torch.optim.Adagrad(net.parameters(), lr=args.lr)
    for k, ir, rt in takes(args.takes, gen):
        shelf = Shelf()
        with torch.autograd.graph.saved_tensors_hooks(shelf.put, shelf.take):
            guess = net(ir)
            loss = (guess - rt).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"take {k:2d}  L1 {loss.item():.6f}  shelf {shelf.bytes} B")
    print(f"done, sum of weights {sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    main()
