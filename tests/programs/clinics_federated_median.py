"""Federated training over clinics.  Each round the clinics that are awake train from the global weights on their own
patients, and the server takes the coordinate-wise median of what was reported."""
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

LABS = 7


class Clinic:
    def __init__(self, number, gen):
        self.number = number
        self.gen = gen
        self.bias = 0.6 * torch.randn((), generator=gen)
        self.never = number % LABS              # a test this laboratory does not offer

    def patients(self, n=24):
        x = torch.randn(n, LABS, generator=self.gen)
        risk = x[:, 0] - 0.8 * x[:, 2] + 0.5 * x[:, 4] * x[:, 5] + self.bias
        y = (risk + 0.4 * torch.randn(n, generator=self.gen) > 0).float()
        x[torch.rand(n, LABS, generator=self.gen) < 0.1] = float("nan")
        x[:, self.never] = float("nan")
        return x, y

    def awake(self, round_):
        return (round_ * 3 + self.number * 5) % 7 > 1


class Screening(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * LABS, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, labs):
        known = ~torch.isnan(labs)
        return self.layers(torch.cat([torch.nan_to_num(labs), known.float()], dim=1)).squeeze(1)


def local_training(worker, clinic, visits=2):
    sgd = torch.optim.SGD(worker.parameters(), lr=0.3, momentum=0.5)
    for _ in range(visits):
        x, y = clinic.patients()
        loss = nn.functional.binary_cross_entropy_with_logits(worker(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        local_training.count += 1
        print(f"  visit {local_training.count:2d} clinic {clinic.number} loss {loss.item():.5f}")
    return parameters_to_vector(worker.parameters()).detach()


local_training.count = 0


def main(rounds=6, clinics=4):
    torch.manual_seed(50)
    houses = [Clinic(k, torch.Generator().manual_seed(60 + k)) for k in range(clinics)]
    server, worker = Screening(), Screening()
    for round_ in range(1, rounds + 1):
        size = sum(p.numel() for p in server.parameters())
        reports = torch.full((clinics, size), float("nan"))     # a row per clinic, empty until it reports
        for house in houses:
            if house.awake(round_):
                worker.load_state_dict(server.state_dict())
                reports[house.number] = local_training(worker, house)
        heard = int((~reports[:, 0].isnan()).sum())
        if heard:
            vector_to_parameters(reports.nanmedian(dim=0).values, server.parameters())
        print(f"round {round_}: {heard} of {clinics} clinics reported")
    with torch.no_grad():
        print(f"global weights, sum of squares {parameters_to_vector(server.parameters()).square().sum().item():.6f}")


if __name__ == "__main__":
    main()
