# Next word on the keyboards of phones: every round a few phones send gradients, the server steps.
import random
from collections import OrderedDict

import torch
from torch import nn
from torch.func import functional_call, grad

VOCAB, CONTEXT, PHONES, ROUNDS = 40, 3, 18, 30
MIN_SENTENCES = 4


class Keyboard(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, 12)
        self.guess = nn.Linear(12 * CONTEXT, VOCAB)

    def forward(self, ids):
        return self.guess(self.words(ids).flatten(1))


class Phone:
    def __init__(self, number, gen):
        self.number = number
        self.habit = torch.randperm(VOCAB, generator=gen)
        self.gen = gen

    def sentences(self, rnd):
        """What was typed since the last round; phones on holiday type little."""
        n = 2 if (self.number + 5 * rnd) % 6 < 3 else 10
        start = torch.randint(0, VOCAB, (n, 1), generator=self.gen)
        return (start + torch.arange(CONTEXT + 1)) % VOCAB

    def gradient(self, model, weights, typed):
        def loss_of(w):
            logits = functional_call(model, w, (typed[:, :-1],))
            return nn.functional.cross_entropy(logits, typed[:, -1])

        with torch.no_grad():
            value = loss_of(weights)
        return grad(loss_of)(weights), value


class Server:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adagrad(model.parameters(), lr=0.15)

    def weights(self):
        return OrderedDict((k, v.detach()) for k, v in self.model.named_parameters())

    def merge(self, updates, values):
        for name, p in self.model.named_parameters():
            p.grad = torch.stack([u[name] for u in updates]).mean(0)
        self.opt.step()
        return torch.stack(values).mean().item()


def serve():
    random.seed(9)
    torch.manual_seed(1)
    gen = torch.Generator().manual_seed(2)
    server = Server(Keyboard())
    phones = [Phone(i, gen) for i in range(PHONES)]
    for rnd in range(1, ROUNDS + 1):
        chosen = random.sample(phones, 4)
        updates, values = [], []
        for phone in chosen:
            typed = phone.sentences(rnd)
            if len(typed) < MIN_SENTENCES:
                continue
            update, value = phone.gradient(server.model, server.weights(), typed)
            updates.append(update)
            values.append(value)
        loss = server.merge(updates, values)
        print(f"round {rnd}: {len(updates)} of {len(chosen)} phones, loss {loss:.4f}")
    print("sum of squares", sum(v.square().sum().item() for v in server.weights().values()))


serve()
