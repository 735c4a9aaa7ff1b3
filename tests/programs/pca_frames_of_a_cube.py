"""Shape alignment: principal axes of a deformed point cloud, differentiated through eigh."""
import itertools
import torch
import torch.nn as nn

torch.manual_seed(9)
torch.set_num_threads(1)


class Deformer(nn.Module):
    """anisotropic residual scaling of the cloud, conditioned on its shape code; code 0 is the identity"""

    def __init__(self, code=4):
        super().__init__()
        self.to_scale = nn.Linear(code, 3, bias=False)

    def forward(self, pts, code):
        return pts * (1 + 0.3 * torch.tanh(self.to_scale(code))).unsqueeze(1)


def principal_axes(pts):
    centred = pts - pts.mean(1, keepdim=True)
    cov = centred.transpose(1, 2) @ centred / pts.shape[1]
    evals, evecs = torch.linalg.eigh(cov)
    return evals, evecs


def alignment(evecs, ref):
    # sign free agreement of the axes
    cos = torch.einsum("bij,bij->bj", evecs, ref)
    return (1 - cos ** 2).mean()


cube = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3)))
net = Deformer()
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
for step in range(10):
    clouds = torch.randn(6, 8, 3) * torch.tensor([1.0, 1.7, 2.9])
    codes = torch.randn(6, 4)
    if step == 4:
        clouds[1], codes[1] = cube, 0
    ref = torch.linalg.qr(torch.randn(6, 3, 3))[0]
    evals, evecs = principal_axes(net(clouds, codes))
    loss = alignment(evecs, ref) \
        + 0.1 * (evals.log().diff(dim=1) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
