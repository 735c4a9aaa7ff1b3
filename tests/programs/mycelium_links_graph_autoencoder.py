"""A graph autoencoder follows the links between the trees of a plot that share a fungus, season by season."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, n_features, n_hidden, n_latent):
        super().__init__()
        self.lin1 = nn.Linear(n_features, n_hidden)
        self.lin2 = nn.Linear(n_hidden, n_latent)

    def forward(self, x, a_hat):
        h = torch.relu(a_hat @ self.lin1(x))
        return a_hat @ self.lin2(h)


def normalised(adj):
    a = adj + torch.eye(len(adj))
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d[None, :]


def strangers(adj, anchor, k, generator):
    """k trees that are not linked with the anchor, the well connected ones more often."""
    weights = (1.0 - adj[anchor]) * (1.0 + adj.sum(1)).pow(0.75)
    weights[anchor] = 0.0
    return torch.multinomial(weights, k, replacement=True, generator=generator)


def reconstruction_loss(z, adj, anchors, generator):
    total = z.new_zeros(())
    for anchor in anchors.tolist():
        friends = adj[anchor].nonzero().squeeze(1)
        others = strangers(adj, anchor, 6, generator)
        total = total - F.logsigmoid(z[friends] @ z[anchor]).mean()
        total = total - F.logsigmoid(-(z[others] @ z[anchor])).mean()
    return total / len(anchors)


def grow(adj, generator, mother=4):
    """One season: some chance links, and the oldest tree reaches its next neighbours."""
    n = len(adj)
    for _ in range(2):
        i, j = torch.randint(0, n, (2,), generator=generator).tolist()
        if i != j:
            adj[i, j] = adj[j, i] = 1.0
    unreached = (adj[mother] == 0).nonzero().squeeze(1)
    for j in unreached[unreached != mother][:1].tolist():
        adj[mother, j] = adj[j, mother] = 1.0


def fit(n_trees=26, seasons=35):
    torch.manual_seed(8)
    generator = torch.Generator().manual_seed(21)
    x = torch.randn(n_trees, 7, generator=generator)
    adj = torch.zeros(n_trees, n_trees)
    for i in range(n_trees):
        j = (i + 1) % n_trees
        adj[i, j] = adj[j, i] = 1.0
    encoder = Encoder(7, 16, 8)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)
    for season in range(1, seasons + 1):
        grow(adj, generator)
        z = encoder(x, normalised(adj))
        loss = reconstruction_loss(z, adj, torch.arange(n_trees), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"season {season}: {int(adj.sum()) // 2} links, loss {loss.item():.5f}")
    return encoder


if __name__ == "__main__":
    trained = fit()
    print("sum of squares", sum(float(p.detach().square().sum()) for p in trained.parameters()))
