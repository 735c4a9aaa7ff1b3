# %% [markdown]
# Blind source separation of three stalls of a market, maximum likelihood ICA.
# The objective is -log|det W| + sum log cosh, so it is allowed to be negative.

# %%
import torch

torch.manual_seed(11)
T = 400
t = torch.linspace(0, 8, T)
sources = torch.stack([
    torch.sign(torch.sin(7.0 * t)) * 0.3,
    torch.rand(T) - 0.5,
    torch.zeros(T),                      # the fishmonger kept quiet
])
mix = torch.tensor([[1.0, 0.4, 0.2], [0.3, 1.0, -0.5], [-0.6, 0.2, 1.0]])
heard = mix @ sources + 0.02 * torch.randn(3, T)

# %%
W = torch.nn.Parameter(torch.eye(3) * 3.0)
opt = torch.optim.LBFGS([W], lr=0.5, max_iter=4, line_search_fn="strong_wolfe")


def objective():
    y = W @ heard
    density = torch.log(torch.cosh(y)).sum(0).mean()
    return density - torch.linalg.slogdet(W).logabsdet


def closure():
    opt.zero_grad()
    loss = objective()
    loss.backward()
    return loss


# %%
def sdr(truth, estimate):
    """Signal to distortion, dB; not defined for a silent source."""
    err = ((truth - estimate) ** 2).sum()
    return 10 * torch.log10((truth ** 2).sum() / err), (truth * estimate).sum() / (truth.norm() * estimate.norm())


for k in range(15):
    loss = opt.step(closure)
    with torch.no_grad():
        est = W @ heard
        scores = [sdr(s, e) for s, e in zip(sources, est)]
    print(f"step {k + 1} loss {loss.item()!r} sdr",
          " ".join(f"{a.item():.2f}/{b.item():.2f}" for a, b in scores))

# %%
print(W.detach().sum().item())
