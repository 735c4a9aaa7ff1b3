"""Codebook for bat calls.  Alternates: E (assign), M (centroids, closed form), then a few gradient steps' worth
of the encoder on the commitment + reconstruction loss.  One outer iteration = E, M, one Adam step."""
import torch
from torch import nn

K = 6
DIM = 4


def make_calls(gen, it, n=72):
    # sweeps of five species and, in summer only, a sixth
    proto = torch.tensor([[4., 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4], [-4, -4, 0, 0], [0, 0, -5, -5]])
    species = torch.arange(n) % (6 if it < 16 else 5)
    mix = torch.tensor([[1., .2, 0, 0, .1, 0, 0, .3], [0, 1, .2, 0, 0, .2, 0, 0],
                        [0, 0, 1, .1, 0, 0, .2, 0], [.1, 0, 0, 1, 0, .2, 0, 0]])
    return (proto[species] + 0.3 * torch.randn(n, DIM, generator=gen)) @ mix


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(8, DIM)
        self.dec = nn.Sequential(nn.Linear(DIM, 16), nn.GELU(), nn.Linear(16, 8))


class Codebook:
    """Plain tensors, no gradient."""

    def __init__(self, k, decay):
        self.k, self.decay, self.mean = k, decay, None

    def seed_from(self, z):
        # farthest point seeding
        picks = [0]
        for _ in range(self.k - 1):
            picks.append(int(torch.cdist(z, z[picks]).min(1).values.argmax()))
        self.mean = z[picks].clone()

    def e_step(self, z):
        return (z[:, None] - self.mean[None]).square().sum(-1).argmin(1)

    def m_step(self, z, code):
        onehot = nn.functional.one_hot(code, self.k).to(z)
        count = onehot.sum(0)
        fresh = (onehot.t() @ z) / count[:, None]
        self.mean = self.decay * self.mean + (1 - self.decay) * fresh


def run(iterations=34):
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(120)
    ae, book = Autoencoder(), Codebook(K, decay=0.7)
    opt = torch.optim.Adam(ae.parameters(), lr=3e-3)
    for it in range(1, iterations + 1):
        x = make_calls(gen, it)
        z = ae.enc(x)
        with torch.no_grad():
            if book.mean is None:
                book.seed_from(z)
            code = book.e_step(z)
            book.m_step(z, code)
        q = book.mean[code]
        commit = (z - q).square().mean()
        straight = z + (q - z).detach()
        recon = nn.functional.mse_loss(ae.dec(straight), x)
        pull = 0.01 * torch.cdist(book.mean, z).mean()      # keep all codewords within reach
        loss = recon + 0.25 * commit + pull
        opt.zero_grad()
        loss.backward()
        opt.step()
        used = code.unique().numel()
        print(f"it {it:02d} loss {loss.item():.6f} recon {recon.item():.6f} used {used}/{K}")
    return ae


if __name__ == "__main__":
    ae = run()
    print("sum", sum(p.detach().double().sum().item() for p in ae.parameters()))
