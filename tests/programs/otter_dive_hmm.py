import torch
import torch.nn as nn

# Time-depth recorder of a sea otter: hidden Markov model with Gaussian emissions (rest / forage / travel),
# maximum likelihood by gradient, forward algorithm with the usual rescaling (Rabiner 1989).


class DiveHMM(nn.Module):
    def __init__(self, n_states=3, n_channels=2):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(n_states))
        self.trans = nn.Parameter(2.0 * torch.eye(n_states))
        self.mean = nn.Parameter(torch.tensor([[0.5, 0.2], [8.0, 1.0], [3.0, 1.5]]))
        self.log_sd = nn.Parameter(torch.tensor([[0.7, 0.0], [1.3, 0.3], [1.0, 0.2]]))

    def emission(self, obs):
        # obs: batch x time x channels  ->  batch x time x states
        gauss = torch.distributions.Normal(self.mean, self.log_sd.exp(), validate_args=False)
        return gauss.log_prob(obs.unsqueeze(2)).sum(-1).exp()

    def forward(self, obs):
        B = self.emission(obs)
        A = self.trans.softmax(-1)
        alpha = self.start.softmax(-1) * B[:, 0]
        loglik = 0.0
        for t in range(obs.shape[1]):
            if t > 0:
                alpha = (alpha @ A) * B[:, t]
            scale = alpha.sum(-1, keepdim=True)
            alpha = alpha / scale
            loglik = loglik + scale.log().squeeze(-1)
        return loglik


def simulate_dives(n_bouts, length, seed):
    g = torch.Generator().manual_seed(seed)
    mean = torch.tensor([[0.3, 0.1], [11.0, 0.8], [4.0, 1.8]])
    sd = torch.tensor([[0.3, 0.1], [3.0, 0.4], [1.5, 0.5]])
    stay = 0.85
    out = torch.empty(n_bouts, length, 2)
    for i in range(n_bouts):
        s = int(torch.randint(3, (1,), generator=g))
        for t in range(length):
            if torch.rand((), generator=g) > stay:
                s = int(torch.randint(3, (1,), generator=g))
            out[i, t] = mean[s] + sd[s] * torch.randn(2, generator=g)
    return out


def read_logger():
    """bouts of one animal in the order of the deployment; the logger was swapped once"""
    dives = simulate_dives(160, 20, seed=12)
    firmware = torch.ones(160, dtype=torch.long)
    firmware[66:] = 2
    dives[firmware == 2, :, 0] *= 100
    return dives


def fit(model, dives, batch_size=8, lr=0.03):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=lr)
    n = 0
    for bouts in dives.split(batch_size):
        n += 1
        optimizer.zero_grad()
        nll = -model(bouts).mean() / bouts.shape[1]
        nll.backward()
        optimizer.step()
        print("bouts {:>3}  nll per sample {:.4f}".format(n * batch_size, nll.item()), flush=True)
    return model


if __name__ == '__main__':
    torch.manual_seed(0)
    hmm = fit(DiveHMM(), read_logger())
    print("means", hmm.mean.detach().mean(1).tolist(), flush=True)
    print("final {:.4f}".format(sum(p.detach().abs().sum().item() for p in hmm.parameters())))
