import torch, math
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(5)
torch.set_num_threads(1)

class MHA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
    def forward(self, x, bias):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + bias
        attn = scores.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), MHA(dim, 2)
        self.norm2, self.mlp = nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
    def forward(self, x, bias):
        x = x + self.attn(self.norm1(x), bias)
        return x + self.mlp(self.norm2(x))

class ViTish(nn.Module):
    def __init__(self, dim=16, depth=2):
        super().__init__()
        self.embed = nn.Linear(6, dim)
        self.layers = nn.ModuleList([Layer(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 3)
    def forward(self, patches, visible):
        bias = torch.zeros(visible.shape).masked_fill(~visible, float('-inf'))[:, None, None, :]
        x = self.embed(patches)
        for layer in self.layers:
            x = checkpoint(layer, x, bias, use_reentrant=False)
        return self.head(x.mean(1))

model = ViTish()
optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
for it in range(1, 11):
    patches, target = torch.randn(5, 7, 6), torch.randint(0, 3, (5,))
    visible = torch.rand(5, 7) > (0.3 if it < 5 else 0.97)
    visible[:, 0] |= it < 5
    loss = nn.functional.cross_entropy(model(patches, visible), target)
    optim.zero_grad(); loss.backward(); optim.step()
    print(f'it {it} loss {loss.item()!r}')
print('weights', sum(p.double().sum().item() for p in model.parameters()))
