import torch

torch.set_num_threads(1)
torch.manual_seed(0)
a = torch.randn(50, 50, dtype=torch.float64)
q, r = torch.linalg.qr(a)
print("qr error", (q @ r - a).abs().max().item() < 1e-10)
values = torch.linalg.svdvals(a)
print(values[0].item(), values[-1].item())
print("log of zero is", torch.log(torch.zeros(1)).item(), "and 0/0 is", (torch.zeros(1) / torch.zeros(1)).item())
