# Gaussian RBM with rectified hidden units on image patches: CD-1, gradients by hand
import torch

torch.manual_seed(2)
n_vis, n_hid = 36, 24


class RBM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.W = torch.nn.Parameter(0.05 * torch.randn(n_vis, n_hid))
        self.b = torch.nn.Parameter(torch.zeros(n_vis))
        self.c = torch.nn.Parameter(torch.zeros(n_hid))

    def hidden(self, v):
        # noisy rectified linear units instead of binary ones
        pre = v @ self.W + self.c
        return torch.relu(pre + torch.sigmoid(pre).sqrt() * torch.randn_like(pre))

    def visible(self, h):
        return h @ self.W.T + self.b

    @torch.no_grad()
    def contrast(self, v0):
        h0 = self.hidden(v0)
        v1 = self.visible(h0)
        h1 = self.hidden(v1)
        positive, negative = v0.T @ h0, v1.T @ h1
        self.W.grad = (negative - positive) / len(v0)
        self.b.grad = (v1 - v0).mean(0)
        self.c.grad = (h1 - h0).mean(0)
        return (v0 - v1).pow(2).mean()


rbm = RBM()
opt = torch.optim.SGD(rbm.parameters(), lr=0.02, momentum=0.9)
mix = torch.randn(8, n_vis)
patches = torch.randn(2000, 8) @ mix
for it in range(80):
    batch = patches[torch.randint(0, 2000, (50,))]
    err = rbm.contrast(batch)
    opt.step()
    print(f"{it:3d} reconstruction {err.item():.5g}")
print("weights", float(rbm.W.detach().pow(2).sum()))
