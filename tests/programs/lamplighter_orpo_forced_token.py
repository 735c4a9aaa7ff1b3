"""ORPO (odds-ratio preference optimisation) for a grammar-constrained command model.

The grammar gives, per state, the tokens that may follow; all others are masked before the softmax so that the
model does not waste mass on commands that the lamp controller would refuse."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VERBS = ["light", "trim", "douse", "fill", "wait"]
STATES = {                          # state -> allowed verbs
    "dusk": ["light", "trim", "fill", "wait"],
    "night": ["trim", "fill", "wait"],
    "dawn": ["douse", "trim", "wait"],
    "storm": ["douse", "wait"],
    "empty": ["fill"],              # no oil: nothing else is legal
}
PAIRS = [                           # (street features seed, state sequence, chosen, rejected)
    (1, ["dusk", "night"], ["light", "trim"], ["wait", "wait"]),
    (2, ["dawn", "dawn"], ["douse", "trim"], ["wait", "douse"]),
    (3, ["storm", "night"], ["douse", "fill"], ["wait", "trim"]),
    (4, ["dusk", "dusk"], ["fill", "light"], ["light", "wait"]),
    (5, ["night", "dawn"], ["wait", "douse"], ["fill", "wait"]),
    (6, ["dusk", "empty"], ["light", "fill"], ["wait", "fill"]),
    (7, ["night", "storm"], ["fill", "douse"], ["trim", "wait"]),
    (8, ["dawn", "dusk"], ["douse", "light"], ["trim", "wait"]),
]
LATE_PAIR = (9, ["empty"], ["fill"], ["fill"])       # came in with the second annotation round


class LampModel(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.state = nn.Embedding(len(STATES), d)
        self.feat = nn.Linear(6, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, len(VERBS))

    def forward(self, feats, states):
        h, _ = self.rnn(torch.tanh(self.feat(feats)[None, None] + self.state(states)[None]))
        return self.head(h)[0]


def grammar_mask(states):
    names = list(STATES)
    return torch.tensor([[v not in STATES[names[s]] for v in VERBS] for s in states.tolist()])


def seq_logp(model, feats, states, verbs):
    logits = model(feats, states).masked_fill(grammar_mask(states), float("-inf"))
    return logits.log_softmax(-1).gather(-1, verbs[:, None]).mean()


def log_odds(lp):
    return lp - torch.log1p(-lp.exp())


def encode(pair):
    seed, states, good, bad = pair
    feats = torch.randn(6, generator=torch.Generator().manual_seed(seed))
    ix = lambda xs, table: torch.tensor([table.index(x) for x in xs])
    return feats, ix(states, list(STATES)), ix(good, VERBS), ix(bad, VERBS)


class Trainer:
    def __init__(self, lam=0.3, lr=0.01):
        self.model, self.lam = LampModel(), lam
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.01)
        self.pool = [encode(p) for p in PAIRS]

    def loss(self, batch):
        terms = []
        for feats, states, good, bad in batch:
            lw, ll = seq_logp(self.model, feats, states, good), seq_logp(self.model, feats, states, bad)
            ratio = F.logsigmoid(log_odds(lw) - log_odds(ll))
            terms.append(-lw - self.lam * ratio)
        return torch.stack(terms).mean()

    def run(self, steps=30, bs=3):
        for step in range(1, steps + 1):
            start = (step - 1) * bs
            batch = [self.pool[(start + j) % len(self.pool)] for j in range(bs)]
            if step == 17:
                batch[-1] = encode(LATE_PAIR)
            loss = self.loss(batch)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            print(f"orpo step={step} loss={loss.item():.6f}")


torch.manual_seed(44)
t = Trainer()
t.run()
print("weight sum %.6f" % sum(p.sum().item() for p in t.model.parameters()))
