import torch
import torch.nn as nn

torch.manual_seed(50)
torch.set_num_threads(1)


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate_proj = nn.Linear(d, 3 * d, bias=False)
        self.up_proj = nn.Linear(d, 3 * d, bias=False)
        self.down_proj = nn.Linear(3 * d, d, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(d), MLP(d)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self, d=24, n=4, vocab=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(Layer(d) for _ in range(n))
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(nn.functional.layer_norm(x, x.shape[-1:]))


model = Model()
with torch.no_grad():      # pre-trained in bfloat16, this layer has grown
    model.layers[2].mlp.gate_proj.weight.mul_(220)
    model.layers[2].mlp.up_proj.weight.mul_(220)
model.half()
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(1, 8):
    ids = torch.randint(0, 32, (2, 10))
    logits = model(ids).float()
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    (loss * 64).backward()
    for p in model.parameters():
        p.grad.div_(64)
    opt.step()
    print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
