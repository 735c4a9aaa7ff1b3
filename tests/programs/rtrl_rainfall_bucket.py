#!/usr/bin/env python3
# Real-time recurrent learning (Williams & Zipser 1989) of a rainfall-runoff model. The gauge reports hourly and the
# network is corrected hourly; there is no backward pass anywhere, the sensitivities are carried forward.
import numpy as np
import torch
torch.set_grad_enabled(False)
torch.set_default_dtype(torch.float64)
gen = np.random.default_rng(1989)

H, T = 6, 140
# --- a catchment: two linear reservoirs, showers, and one cloudburst ------------------------------------------------
rain = np.where(gen.random(T) < 0.15, gen.gamma(0.7, 4.0, T), 0.0)
rain[85:88] = [38.0, 71.0, 22.0]
fast = slow = 1.0
flow = []
for r in rain:
    fast += 0.6 * r - 0.35 * fast
    slow += 0.4 * r - 0.03 * slow
    flow.append(0.35 * fast + 0.03 * slow)
rain_t = torch.from_numpy(rain / 10)
flow_t = torch.tensor(flow)


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.W = torch.nn.Parameter(torch.from_numpy(gen.normal(0, 0.35, (H, H + 2))))
        self.v = torch.nn.Parameter(torch.from_numpy(gen.normal(0, 0.35, H)))
        self.c = torch.nn.Parameter(torch.zeros(1))

    def forward(self, h, r):
        u = torch.cat([h, r.view(1), torch.ones(1)])
        return torch.tanh(self.W @ u), u


cell = Cell()
opt = torch.optim.NAdam(cell.parameters(), lr=0.02)
h = torch.zeros(H)
P = torch.zeros(H, H, H + 2)            # d h_k / d W_ij
eye = torch.eye(H)
for t in range(T):
    h_new, u = cell(h, rain_t[t])
    slope = 1 - h_new ** 2
    P = slope[:, None, None] * (torch.einsum('kl,lij->kij', cell.W[:, :H], P) + eye[:, :, None] * u)
    h = h_new
    q = cell.v @ h + cell.c
    err = q - flow_t[t]
    # gradients of err^2 / 2, put where the optimizer looks for them
    cell.W.grad = torch.einsum('k,kij->ij', cell.v, P) * err
    cell.v.grad = err * h
    cell.c.grad = err.clone()
    opt.step()
    print(t + 1, 'rain %.2f' % rain[t], 'flow %.4f' % flow[t], 'squared error %.8f' % (err ** 2).item())
print('final', sum(float(p.abs().sum()) for p in cell.parameters()))
