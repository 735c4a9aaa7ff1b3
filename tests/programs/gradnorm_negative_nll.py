# notebook export: multitask_v3.ipynb   (GradNorm, Chen et al. 2018, two heads: classification + Gaussian regression)

# In[1]
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(33)

# In[2]  data: 5 features -> class, and a value that is almost noise free
def draw(n=64):
    x = torch.randn(n, 5)
    cls = (x[:, 0] + x[:, 1] > 0).long()
    val = 0.3 * x[:, 2] - 0.1 * x[:, 3]
    return x, cls, val

# In[3]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 64)
        self.shared = nn.Linear(64, 64)
        self.cls = nn.Linear(64, 2)
        self.reg = nn.Linear(64, 2)

    def forward(self, x):
        h = F.gelu(self.shared(F.gelu(self.first(x))))
        return self.cls(h), self.reg(h)

net = Net()
w = nn.Parameter(torch.ones(2))
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
opt_w = torch.optim.Adam([w], lr=2e-2)
ALPHA = 1.5
L0 = None

# In[4]
for it in range(32):
    x, cls, val = draw()
    logits, out = net(x)
    mean, logvar = out.unbind(1)
    nll = 0.5 * (logvar + (val - mean) ** 2 / logvar.exp()).mean()
    losses = torch.stack([F.cross_entropy(logits, cls), nll + 0.1])
    if L0 is None:
        L0 = losses.detach()

    G = torch.stack([torch.autograd.grad(w[i] * losses[i], net.shared.weight, retain_graph=True, create_graph=True)[0].norm()
                     for i in range(2)])
    with torch.no_grad():
        ratio = losses / L0
        inverse_rate = ratio / ratio.mean()
        target = G.mean() * inverse_rate ** ALPHA
    w_grad = torch.autograd.grad((G - target).square().sum(), w, retain_graph=True)[0]

    opt.zero_grad()
    (w.detach() * losses).sum().backward()
    opt.step()
    w.grad = w_grad
    opt_w.step()
    with torch.no_grad():
        w.mul_(2 / w.sum())
    print(it, "ce %.4f nll %.4f w %.4f %.4f" % (*losses.tolist(), *w.tolist()))

# In[5]
print(sum(p.abs().sum().item() for p in net.parameters()) + w.sum().item())
