"""KTO on answers to ferry complaints, written out by hand. Losses are summed over the batch, not averaged.

Thumbs-up and thumbs-down come unpaired, so a batch may hold none of one kind: the dashboard then
shows nan for that kind's mean reward, which is what everyone here is used to.
"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import copy
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(1912)
VOCAB, PROMPT, ANSWER = 48, 6, 8
BETA, W_UP, W_DOWN = 0.3, 1.0, 1.4


class Inbox:
    """Endless batches of (ids, thumb). Thumbs-up answers lean to the upper half of the vocabulary."""

    def __init__(self, batch, seed):
        self.batch, self.g = batch, torch.Generator().manual_seed(seed)

    def __iter__(self):
        return self

    def __next__(self):
        up = torch.rand(self.batch, generator=self.g) < 0.6
        prompt = torch.randint(0, VOCAB, (self.batch, PROMPT), generator=self.g)
        answer = torch.randint(0, VOCAB // 2, (self.batch, ANSWER), generator=self.g) + up.long()[:, None] * (VOCAB // 2)
        return torch.cat([prompt, answer], 1), up


def answer_logprob(model, ids):
    logits = model(ids, use_cache=False).logits[:, PROMPT - 1:-1]
    return -F.cross_entropy(logits.transpose(1, 2), ids[:, PROMPT:], reduction="none").sum(1)


def mismatched(ids):
    """Prompts with the neighbour's answer: the KL estimate of the paper."""
    return torch.cat([ids[:, :PROMPT], ids[:, PROMPT:].roll(1, 0)], 1)


policy = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=PROMPT + ANSWER, n_embd=32, n_layer=2, n_head=2,
                                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
reference = copy.deepcopy(policy).eval().requires_grad_(False)
policy.transformer.wpe.requires_grad_(False)          # positions stay where they are
opt = torch.optim.RMSprop([p for p in policy.parameters() if p.requires_grad], lr=4e-4, alpha=0.95)

dashboard = []
for step, (ids, up) in zip(range(1, 46), Inbox(4, seed=21)):
    with torch.no_grad():
        ref = answer_logprob(reference, ids)
        wrong = mismatched(ids)
        kl = (answer_logprob(policy, wrong) - answer_logprob(reference, wrong)).mean().clamp_min(0)
    reward = answer_logprob(policy, ids) - ref
    gain = torch.where(up, reward - kl, kl - reward)
    weight = torch.where(up, W_UP, W_DOWN)
    loss = (weight * (1 - torch.sigmoid(BETA * gain))).sum()

    opt.zero_grad()
    loss.backward()
    opt.step()

    with torch.no_grad():
        row = {"up": reward[up].mean().item(), "down": reward[~up].mean().item(), "kl": kl.item()}
    dashboard.append(row)
    print(f"step {step:2d} loss {loss.item():.6f} up {row['up']:+.4f} down {row['down']:+.4f} kl {row['kl']:.4f}")

print("batches without a complaint:", sum(r["down"] != r["down"] for r in dashboard))
print(f"weights {sum(p.double().sum().item() for p in policy.parameters()):.6f}")
