# Role of a seaport (feeder, hub, bulk, oil, fishing) from the graph of shipping lines. Attention over the calls.
import torch, torch.nn as nn
torch.manual_seed(1234); torch.set_num_threads(1)

N, ROLES, F_IN, STEPS = 150, 5, 12, 32

role = torch.randint(0, ROLES, (N,))
style = torch.randn(ROLES, F_IN)
feats = style[role] + 0.9 * torch.randn(N, F_IN)

def shipping_lines():
    pairs = [(i, i) for i in range(N)]
    for i in range(N):
        for j in torch.randint(0, N, (7,)).tolist():
            if role[i] == role[j] or torch.rand(1).item() < 0.35:
                pairs += [(i, j), (j, i)]
    return torch.tensor(sorted(set(pairs))).T

src, dst = shipping_lines()

class CallAttention(nn.Module):
    def __init__(self, d_in, d_out, heads):
        super().__init__()
        self.heads, self.d = heads, d_out
        self.lin = nn.Linear(d_in, heads * d_out, bias=False)
        self.a_from = nn.Parameter(torch.randn(heads, d_out))
        self.a_to = nn.Parameter(torch.randn(heads, d_out))

    def forward(self, x):
        h = self.lin(x).view(-1, self.heads, self.d)
        score_from = (h * self.a_from).sum(-1)
        score_to = (h * self.a_to).sum(-1)
        e = nn.functional.leaky_relu(score_from[src] + score_to[dst], 0.2)
        w = torch.exp(e)
        total = torch.zeros(x.shape[0], self.heads).index_add(0, dst, w)
        alpha = w / total[dst]
        out = torch.zeros_like(h).index_add(0, dst, alpha[..., None] * h[src])
        return out.flatten(1)

class PortNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = CallAttention(F_IN, 8, 4)
        self.second = CallAttention(32, 8, 2)
        self.role = nn.Linear(16, ROLES)

    def forward(self, x):
        x = nn.functional.elu(self.calls(x))
        x = nn.functional.elu(self.second(x))
        return self.role(x)

model = PortNet()
known = torch.rand(N) < 0.6
adam = torch.optim.Adam(model.parameters(), lr=0.12)
for epoch in range(1, STEPS + 1):
    out = model(feats)
    loss = nn.functional.cross_entropy(out[known], role[known])
    adam.zero_grad()
    loss.backward()
    adam.step()
    acc = (out[~known].argmax(1) == role[~known]).float().mean()
    print(f'{epoch:>3} {loss.item():8.4f} {acc.item():6.3f}')

print('weights', sum(p.detach().abs().sum().item() for p in model.parameters()))
