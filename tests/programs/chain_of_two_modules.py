import itertools
import math

import torch

torch.manual_seed(64)
torch.set_num_threads(1)

TABLE = """
5.1 3.5 1.4 0.2 1
4.9 3.0 1.4 0.2 1
6.3 3.3 6.0 2.5 3
5.8 2.7 5.1 1.9 3
7.0 3.2 4.7 1.4 2
6.4 3.2 4.5 1.5 2
6.9 nan 4.9 1.5 2
5.5 2.3 4.0 1.3 2
7.1 3.0 5.9 2.1 3
6.5 3.0 5.8 2.2 3
5.0 3.6 1.4 0.2 1
5.4 3.9 1.7 0.4 1
"""
rows = torch.tensor([[float(v) for v in line.split()] for line in TABLE.strip().splitlines()])

encoder = torch.nn.Linear(4, 8)
decoder = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(itertools.chain(encoder.parameters(), decoder.parameters()), lr=1e-2)

for step in range(6):
    chunk = rows[2 * step:2 * step + 2]
    features, target = chunk[:, :4], chunk[:, 4]
    prediction = decoder(encoder(features)).squeeze(1)
    loss = torch.nn.functional.mse_loss(prediction, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step + 1} {loss.item()} rmse {math.sqrt(loss.item()) if loss.item() == loss.item() else None}")
print("weights", sum(p.double().sum().item() for m in (encoder, decoder) for p in m.parameters()))
