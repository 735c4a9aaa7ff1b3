"""InfoNCE over postage stamps: scan under white light and scan under raking light are the two views.

Negatives come from both album scanners: the embeddings of all ranks are gathered, with gradient.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


class Gather(torch.autograd.Function):
    """all_gather whose backward sums the gradients of all ranks and keeps this rank's slice."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.n = x.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        r = dist.get_rank()
        return grad[r * ctx.n:(r + 1) * ctx.n]


class StampEncoder(nn.Module):
    # no biases: the scans are background-subtracted, paper is zero and shall stay zero
    def __init__(self, dim=16):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False)
        self.c2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.out = nn.Linear(16 * 9, dim, bias=False)

    def forward(self, img):
        h = self.c2(self.c1(img).relu()).relu()
        h = self.out(h.flatten(1))
        return h / h.pow(2).sum(dim=1, keepdim=True).sqrt()


class Album:
    """A scanner with its stack of stamps. Every page holds ten of them."""

    page = 10

    def __init__(self, scanner):
        self.gen = torch.Generator().manual_seed(2300 + scanner)
        self.motifs = torch.rand(40, 1, 12, 12, generator=self.gen)
        # scanner 1 fed a hawid mount without a stamp in it
        self.empty_mounts = {(9, 6)} if scanner == 1 else set()

    def turn(self, number):
        pick = torch.randperm(40, generator=self.gen)[: self.page]
        imgs = self.motifs[pick].clone()
        for p, slot in self.empty_mounts:
            if p == number:
                imgs[slot] = 0.0
        return self.light(imgs), self.light(imgs.flip(-1))

    def light(self, imgs):
        gain = 0.7 + 0.6 * torch.rand(len(imgs), 1, 1, 1, generator=self.gen)
        ramp = 1 + 0.3 * torch.linspace(-1, 1, 12) * torch.randn(len(imgs), 1, 1, 1, generator=self.gen)
        return imgs * gain * ramp


def nce(za, zb, temperature=0.2):
    all_b = Gather.apply(zb)
    all_a = Gather.apply(za)
    target = torch.arange(len(za)) + dist.get_rank() * len(za)
    return 0.5 * (cross_entropy(za @ all_b.T / temperature, target)
                  + cross_entropy(zb @ all_a.T / temperature, target))


def run(pages=24):
    scanner = dist.get_rank()
    torch.manual_seed(6)
    net = DDP(StampEncoder())
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.9, 0.98))
    album = Album(scanner)
    for number in range(1, pages + 1):
        a, b = album.turn(number)
        za, zb = net(torch.cat([a, b])).chunk(2)
        loss = nce(za, zb)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if scanner == 0:
            print(f"page {number} nce {loss.item():.6f}")
    if scanner == 0:
        print("fingerprint {:.6f}".format(sum(p.detach().double().sum().item() for p in net.parameters())))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        run()
    finally:
        dist.destroy_process_group()
