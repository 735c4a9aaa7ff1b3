"""Break a simple substitution over twelve letters by descent on a doubly stochastic key."""
import torch

LETTERS = "etaoinshrdlu"
N = len(LETTERS)
g = torch.Generator().manual_seed(1466)

language = torch.distributions.Dirichlet(torch.full((N,), 0.25))
torch.manual_seed(3)
bigrams = language.sample((N,)) * 0.97 + 0.03 / N
key = torch.randperm(N, generator=g)


def plain_text(length):
    text = [0]
    for _ in range(length - 1):
        text.append(int(torch.multinomial(bigrams[text[-1]], 1, generator=g)))
    return torch.tensor(text)


cipher = key[plain_text(1500)]
counts = torch.zeros(N, N).index_put_((cipher[:-1], cipher[1:]), torch.ones(len(cipher) - 1), accumulate=True)
counts = counts / counts.sum()
gain = torch.log(bigrams * N)

# cribs: some pairs of cipher and plain letter are known to be impossible
allowed = torch.rand(N, N, generator=g) < 0.45
allowed[key, torch.arange(N)] = True


def soft_key(raw, heat, sweeps=12):
    log_p = (raw / heat).masked_fill(~allowed, float("-inf"))
    for _ in range(sweeps):
        log_p = log_p - log_p.logsumexp(1, keepdim=True)
        log_p = log_p - log_p.logsumexp(0, keepdim=True)
    return log_p


def readable(log_p):
    return int((log_p.argmax(1)[key] == torch.arange(N)).sum())


raw = torch.nn.Parameter(0.3 * torch.randn(N, N, generator=g))
opt = torch.optim.Adam([raw], lr=0.25)
best = float("inf"), None
patience = 0
for step in range(1, 41):
    log_p = soft_key(raw, heat=max(0.3, 1.0 - 0.03 * step))
    p = log_p.exp()
    loss = -((p.T @ counts @ p) * gain).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step:2d} score {-loss.item():+.4f} loss {loss.item():+.4f} letters right {readable(log_p):2d} lowest {log_p.min().item()}")
    if loss.item() < best[0]:
        best = loss.item(), raw.detach().clone()
    if step in (14, 27):
        with torch.no_grad():
            raw.copy_(0.3 * torch.randn(N, N, generator=g))
        opt.state.clear()
        print("        a fresh key")
with torch.no_grad():
    raw.copy_(best[1])
print("best loss", round(best[0], 4), "sum of squares of the key", round(raw.square().sum().item(), 4))
