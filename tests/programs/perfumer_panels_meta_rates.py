"""Meta-learning the nose: every taster rates perfumes, a head is fitted per taster (torch.func),
the common body and the rates of the inner steps are learned across tasters."""
import torch
from torch.func import functional_call, grad, vmap

torch.manual_seed(2)
NOTES, FEATS, TASTERS, SHOTS = 6, 10, 8, 6


class Body(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(NOTES, 16)
        self.feat = torch.nn.Linear(16, FEATS)

    def forward(self, x):
        return torch.tanh(self.feat(torch.nn.functional.gelu(self.mix(x))))


body = Body()
log_rates = torch.nn.Parameter(torch.full((2, FEATS), -1.0))


def spread(head, feats, ratings):
    return torch.sqrt(((feats @ head - ratings) ** 2).mean())


def one_taster(params, rates, xs, ys, xq, yq):
    middle = ys.mean()
    feats = functional_call(body, params, (xs,))
    head = torch.zeros(FEATS)
    for inner in range(2):
        head = head - rates[inner].exp() * grad(spread)(head, feats, ys - middle)
    guess = functional_call(body, params, (xq,)) @ head + middle
    return ((guess - yq) ** 2).mean()


def season(n):
    """Sheets of a panel of tasters: notes of the perfumes and ratings from 1 to 9."""
    sheets = []
    for evening in range(n):
        taste = torch.randn(TASTERS, NOTES)
        perfumes = torch.rand(TASTERS, 2 * SHOTS, NOTES)
        raw = 5 + 2.5 * torch.einsum("tpn,tn->tp", perfumes - 0.5, taste) + 0.3 * torch.randn(TASTERS, 2 * SHOTS)
        ratings = raw.round().clamp(1, 9)
        if evening == 15:
            ratings[3] = 5.0          # had a cold, filled in the sheet all the same
        sheets.append((perfumes, ratings))
    return sheets


def meta_train(sheets):
    trainable = list(body.parameters()) + [log_rates]
    opt = torch.optim.SGD(trainable, lr=0.05, momentum=0.8)
    for number, (perfumes, ratings) in enumerate(sheets, 1):
        params = dict(body.named_parameters())
        losses = vmap(one_taster, in_dims=(None, None, 0, 0, 0, 0))(
            params, log_rates,
            perfumes[:, :SHOTS], ratings[:, :SHOTS], perfumes[:, SHOTS:], ratings[:, SHOTS:])
        loss = losses.mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        print("evening %2d  loss of the panel %.4f" % (number, loss.item()))
    return trainable


weights = meta_train(season(30))
print("sum of squares over body and rates: %.5f" % sum(float((w.detach() ** 2).sum()) for w in weights))
