import numpy as np
import pandas as pd
import torch

# Brood size of owls in nest boxes. Boxes without chicks are not in the book, so the counts are
# zero-truncated Poisson:   log p(y) = y*eta - lambda - log(1 - exp(-lambda)) - log y!
rng = np.random.default_rng(2024)
n = 240
df = pd.DataFrame({
    'district': rng.choice(['dike', 'forest', 'orchard', 'quarry', 'village'], size=n, p=[.25, .25, .2, .1, .2]),
    'voles': rng.normal(0, 1, n),
    'age': rng.integers(1, 9, n),
})
mean = df.district.map({'dike': 3.2, 'forest': 2.1, 'orchard': 2.8, 'quarry': 0.0, 'village': 1.6}).to_numpy()
mean = mean * np.exp(0.3 * df.voles.to_numpy())
broods = rng.poisson(mean)
while (broods[mean > 0] == 0).any():
    again = (broods == 0) & (mean > 0)
    broods[again] = rng.poisson(mean[again])
df['brood'] = np.where(mean > 0, broods, 1)          # the quarry: never more than a single chick

X = pd.get_dummies(df[['district']], dtype='float32')
X['voles'] = df.voles.astype('float32') * (df.district != 'quarry')     # no vole census there
X['age'] = ((df.age - 4.5) / 8).astype('float32')
names = list(X.columns)
X = torch.tensor(X.to_numpy(dtype='float32'))
y = torch.tensor(df.brood.to_numpy(dtype='float32'))

coef = torch.zeros(X.shape[1], requires_grad=True)
optimizer = torch.optim.Rprop([coef], lr=0.018, etas=(0.5, 2.5))


def negative_log_likelihood():
    eta = X @ coef
    lam = torch.exp(eta)
    positive = torch.log(1 - torch.exp(-lam))
    return -(y * eta - lam - positive - torch.lgamma(y + 1)).mean()


for iteration in range(1, 61):
    optimizer.zero_grad()
    nll = negative_log_likelihood()
    nll.backward()
    optimizer.step()
    print('iter', iteration, 'nll', '%.7f' % nll.item())

for name, value in zip(names, coef.tolist()):
    print(f'   {name:20s} {value: .4f}')
print('final', coef.detach().abs().sum().item())
