"""PPO by hand for a chairlift information line: the policy answers with short token strings.

Each iteration samples a handful of replies with top-k, scores them with a rule, and does one clipped step.
Now and then a reply typed by the lift staff is put among the samples, so that the policy sees good wording.
"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = ["<s>", "</s>", "lift", "open", "closed", "wind", "until", "noon", "queue", "short", "long",
         "please", "hold", "the", "bar", "thanks", "ticket", "summit", "snow", "fog"]
ID = {w: i for i, w in enumerate(VOCAB)}
POLITE = {ID["please"], ID["thanks"], ID["open"]}
STAFF = {14: "please hold the bar thanks".split()}


@dataclass
class Settings:
    iterations: int = 32
    samples: int = 7
    reply_len: int = 5
    top_k: int = 6
    clip: float = 0.2
    entropy: float = 0.01
    lr: float = 2e-3
    filtered: float = -1e4     # logit of tokens outside the top k


class Sampler:
    def __init__(self, policy, cfg, seed):
        self.policy, self.cfg = policy, cfg
        self.gen = torch.Generator().manual_seed(seed)

    def filtered_logprobs(self, logits):
        kth = logits.topk(self.cfg.top_k, dim=-1).values[..., -1:]
        return F.log_softmax(torch.where(logits < kth, self.cfg.filtered, logits), dim=-1)

    @torch.no_grad()
    def rollouts(self, staff=None):
        n = self.cfg.samples + (staff is not None)
        ids = torch.zeros(n, 1, dtype=torch.long)
        old = []
        for t in range(self.cfg.reply_len):
            logp = self.filtered_logprobs(self.policy(ids, use_cache=False).logits[:, -1])
            token = torch.multinomial(logp.exp(), 1, generator=self.gen)
            if staff is not None:
                token[-1] = ID[staff[t]]
            old.append(logp.gather(1, token))
            ids = torch.cat([ids, token], dim=1)
        return ids, torch.cat(old, dim=1)


def reward(ids):
    """Polite words are worth one each, repetitions cost half a point."""
    out = []
    for row in ids[:, 1:].tolist():
        out.append(sum(t in POLITE for t in set(row)) - 0.5 * (len(row) - len(set(row))))
    return torch.tensor(out)


def main(cfg=Settings()):
    torch.manual_seed(88)
    policy = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(VOCAB), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, bos_token_id=0, eos_token_id=1, pad_token_id=None))
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    sampler = Sampler(policy, cfg, seed=6)

    for it in range(1, cfg.iterations + 1):
        ids, old_logp = sampler.rollouts(STAFF.get(it))
        r = reward(ids)
        advantage = ((r - r.mean()) / (r.std() + 1e-4)).unsqueeze(1)

        logits = policy(ids[:, :-1], use_cache=False).logits
        logp_all = F.log_softmax(logits, dim=-1)
        logp = logp_all.gather(2, ids[:, 1:, None]).squeeze(2)
        ratio = torch.exp(logp - old_logp)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantage)
        entropy = -(logp_all.exp() * logp_all).sum(-1).mean()
        loss = -surrogate.mean() - cfg.entropy * entropy

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        print(f"it {it:2d}  reward {r.mean().item():+.4f}  loss {loss.item():+.7f}")

    print(f"policy checksum {sum(p.double().sum().item() for p in policy.parameters()):.6f}")


if __name__ == "__main__":
    main()
