"""Prompt tuning: a frozen language model learns to talk like my lesson notes.

Only four soft prompt vectors are trained.  Whole vectors are dropped at random so that
none of them carries the style alone.
"""
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

torch.manual_seed(1717)
torch.set_num_threads(1)

LESSONS = """let the bow fall, do not press
thumb soft, elbow leads the string
hear the note before you shift
open strings every morning, slow
lean into the C string from the back
count the rests as if they were notes
the left hand hammers, the right hand breathes
tune to the lowest partner""".splitlines()
ALPHABET = ["\0"] + sorted(set("".join(LESSONS)))


def encode(line, width=48):
    ids = [ALPHABET.index(c) for c in line]
    return torch.tensor(ids + [0] * (width - len(ids)))


class SoftPrompt(nn.Module):
    def __init__(self, lm, n=4, p_drop=0.5):
        super().__init__()
        table = lm.get_input_embeddings().weight.detach()
        start = torch.randint(1, len(table), (n,))
        self.vectors = nn.Parameter(table[start].clone())
        self.p_drop = p_drop

    def forward(self, batch):
        v = self.vectors
        if self.training:
            kept = (torch.rand(len(v)) > self.p_drop).float()
            boost = len(v) / kept.sum()
            v = v * kept[:, None] * boost
        return v.expand(batch, -1, -1)


class Tuner:
    def __init__(self, lm, prompt, lr):
        self.lm, self.prompt = lm, prompt
        self.opt = torch.optim.Adagrad(prompt.parameters(), lr=lr)
        self.hooks = []

    def on_step(self, fn):
        self.hooks.append(fn)
        return fn

    def loss(self, ids):
        soft = self.prompt(len(ids))
        words = self.lm.get_input_embeddings()(ids)
        out = self.lm(inputs_embeds=torch.cat([soft, words], 1)).logits
        n = soft.shape[1]
        return F.cross_entropy(out[:, n - 1:-1].flatten(0, 1), ids.flatten(), ignore_index=0)

    def fit(self, ids, steps):
        for k in range(1, steps + 1):
            take = torch.randperm(len(ids))[:4]
            loss = self.loss(ids[take])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            for fn in self.hooks:
                fn(k, loss.item())


lm = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=len(ALPHABET), hidden_size=32, num_hidden_layers=2,
                                      num_attention_heads=4, intermediate_size=64, max_position_embeddings=64))
lm.eval().requires_grad_(False)
prompt = SoftPrompt(lm)
tuner = Tuner(lm, prompt, lr=0.3)


@tuner.on_step
def show(k, loss):
    print(f"bar {k:2d}: {loss:.7f}")


tuner.fit(torch.stack([encode(t) for t in LESSONS]), steps=34)
print("prompt sum", prompt.vectors.detach().sum().item())
