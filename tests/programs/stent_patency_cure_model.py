"""
Mixture cure model for coronary stents: a part of the patients never re-occludes.
time_to_event is inf for patients in whom no re-occlusion was seen; follow_up is always known.
"""
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def registry(n=320, seed=77):
    g = np.random.default_rng(seed)
    df = pd.DataFrame({"diameter": g.normal(3.0, 0.4, n), "length": g.normal(20, 5, n),
                       "diabetes": g.random(n) < 0.3, "follow_up": g.uniform(0.5, 5.0, n)})
    cured = g.random(n) < 1 / (1 + np.exp(-(1.2 + 1.0 * (df.diameter - 3) - 0.9 * df.diabetes)))
    onset = 1.2 * g.weibull(1.4, n)
    df["time_to_event"] = np.where(cured | (onset > df.follow_up), np.inf, onset)
    # the last ward sent in only patients that stayed open
    quiet = df.sort_values("time_to_event", kind="stable").index[-32:]
    return pd.concat([df.drop(quiet), df.loc[quiet]]).reset_index(drop=True)


class CureModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.cured = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.log_scale = nn.Linear(3, 1)
        self.log_shape = nn.Parameter(torch.zeros(()))

    def hazard_and_survival(self, x, years):
        shape = self.log_shape.exp()
        u = years.log() - self.log_scale(x).squeeze(1)
        log_surv = -torch.exp(shape * u)
        log_density = self.log_shape + shape * u - years.log() + log_surv
        return log_density, log_surv

    def forward(self, x, event_time, follow_up):
        logit = self.cured(x).squeeze(1)
        log_pi, log_rest = nn.functional.logsigmoid(logit), nn.functional.logsigmoid(-logit)
        seen = torch.isfinite(event_time)
        at = torch.where(seen, event_time, follow_up)
        log_density, log_surv = self.hazard_and_survival(x, at)
        silent = torch.logaddexp(log_pi, log_rest + log_surv)
        return torch.where(seen, log_rest + log_density, silent), seen


def main():
    torch.manual_seed(13)
    df = registry()
    x = np.column_stack([(df.diameter - 3) / 0.4, (df.length - 20) / 5, df.diabetes]).astype("float32")
    data = TensorDataset(torch.from_numpy(x), torch.tensor(df.time_to_event.to_numpy(dtype="float32")),
                         torch.tensor(df.follow_up.to_numpy(dtype="float32")))
    wards = DataLoader(data, batch_size=32, shuffle=False)
    model = CureModel()
    optimiser = torch.optim.RMSprop(model.parameters(), lr=0.01)
    step = 0
    for sweep in range(3):
        for cov, event_time, follow_up in wards:
            step += 1
            loglik, seen = model(cov, event_time, follow_up)
            events = loglik[seen].sum()
            others = loglik[~seen].sum()
            loss = -(events + others) / len(cov)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            print(f"step {step:2d}  -loglik {loss.item():.4f}  events {int(seen.sum()):2d} contribute {events.item():.3f}"
                  f"  median onset {event_time.median().item():.2f}")
    final = torch.nn.utils.parameters_to_vector(model.parameters())
    print(f"length of the weight vector {final.norm().item():.6f}")


if __name__ == "__main__":
    main()
