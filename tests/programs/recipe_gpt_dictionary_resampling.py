"""A sparse autoencoder on the residual stream of a tiny GPT; latents that never fire are drawn anew."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2Model

WIDTH, LATENTS, STEPS, BATCH, LENGTH = 32, 512, 60, 6, 16
RESAMPLE_EVERY = 20


class Tap:
    """Keeps what a block of the model puts out."""

    def __init__(self, block):
        self.value = None
        block.register_forward_hook(self.keep)

    def keep(self, module, args, out):
        self.value = (out[0] if isinstance(out, tuple) else out).detach()


class SparseCoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(WIDTH))
        self.encode = nn.Linear(WIDTH, LATENTS)
        self.decode = nn.Linear(LATENTS, WIDTH, bias=False)
        with torch.no_grad():
            self.decode.weight.copy_(F.normalize(self.encode.weight.t(), dim=0))
            self.encode.bias.fill_(-0.35)
        self.register_buffer("fired", torch.zeros(LATENTS))

    def forward(self, x):
        code = F.relu(self.encode(x - self.centre))
        self.fired += (code.detach() > 0).float().sum(0)
        return self.decode(code) + self.centre, code


@torch.no_grad()
def resample(coder, opt, x, error):
    """Dead latents become the directions of the rows that are explained worst."""
    dead = (coder.fired == 0).nonzero().squeeze(1)
    if len(dead) > 0:
        chance = error ** 2 / (error ** 2).sum()
        rows = torch.multinomial(chance, len(dead), replacement=False)
        fresh = F.normalize(x[rows] - coder.centre, dim=-1)
        coder.encode.weight[dead] = 0.2 * fresh
        coder.encode.bias[dead] = 0.0
        coder.decode.weight[:, dead] = fresh.t()
        state = opt.state[coder.encode.weight]
        state["exp_avg"][dead] = 0
        state["exp_avg_sq"][dead] = 0
    coder.fired.zero_()
    return len(dead)


def tokens(step):
    g = torch.Generator().manual_seed(step)
    start = torch.randint(0, 50, (BATCH, 1), generator=g)
    stride = torch.randint(1, 7, (BATCH, 1), generator=g)
    return (start + stride * torch.arange(LENGTH)[None]) % 50


def main():
    torch.manual_seed(77)
    gpt = GPT2Model(GPT2Config(vocab_size=50, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=2,
                               bos_token_id=0, eos_token_id=0)).eval()
    gpt.requires_grad_(False)
    tap = Tap(gpt.h[0])
    coder = SparseCoder()
    opt = torch.optim.Adam(coder.parameters(), lr=2e-3)
    for step in range(1, STEPS + 1):
        gpt(tokens(step))
        x = tap.value.reshape(-1, WIDTH)
        x = x / x.norm(dim=-1, keepdim=True).mean()
        back, code = coder(x)
        error = (back - x).pow(2).sum(-1)
        loss = error.mean() + 0.02 * code.abs().sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            coder.decode.weight.div_(coder.decode.weight.norm(dim=0, keepdim=True))
        note = ""
        if step % RESAMPLE_EVERY == 0:
            note = f" drawn anew {resample(coder, opt, x, error.detach())}"
        print(f"step {step} loss {loss.item():.6f} l0 {(code > 0).float().sum(-1).mean().item():.2f}{note}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in coder.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
