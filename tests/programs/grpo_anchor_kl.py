"""GRPO on a tiny Llama, written by hand: groups of samples, clipped ratios, and a k3 penalty on anchor sequences."""
import copy
import os
from types import SimpleNamespace

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
import torch.nn as nn
from transformers import LlamaConfig, LlamaForCausalLM

cfg = SimpleNamespace(vocab=24, prompt=4, answer=20, groups=4, group_size=6, lr=1e-2, clip=0.2, beta=0.02,
                      anchor_every=8, anchor_length=110, anchors=4, steps=36, wanted=7)


def sequence_log_prob(model, ids, start):
    """log p(ids[start:] | ids[:start]) for each token."""
    logits = model(input_ids=ids[:, :-1]).logits[:, start - 1:]
    return logits.log_softmax(-1).gather(-1, ids[:, start:, None]).squeeze(-1)


@torch.no_grad()
def sample(model, ids, n, gen):
    for _ in range(n):
        p = model(input_ids=ids).logits[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=gen)], 1)
    return ids


def group_advantages(rewards):
    r = rewards.view(cfg.groups, cfg.group_size)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()


class AnchorPenalty:
    """Keeps the policy near the reference on what the reference itself would write (k3 estimator, whole sequences)."""

    def __init__(self, reference, gen):
        self.reference, self.gen = reference, gen

    def __call__(self, policy):
        prompts = torch.randint(cfg.vocab, (cfg.anchors, cfg.prompt), generator=self.gen)
        ids = sample(self.reference, prompts, cfg.anchor_length, self.gen)
        with torch.no_grad():
            reference = sequence_log_prob(self.reference, ids, cfg.prompt).sum(-1)
        log_ratio = reference - sequence_log_prob(policy, ids, cfg.prompt).sum(-1)
        k3 = torch.exp(log_ratio) - log_ratio - 1
        return k3.mean()


def reward(answers):
    return (answers == cfg.wanted).float().mean(-1) - 0.3 * (answers[:, 1:] == answers[:, :-1]).float().mean(-1)


def policy_loss(policy, ids, old, advantage):
    ratio = torch.exp(sequence_log_prob(policy, ids, cfg.prompt) - old)
    clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
    return -torch.minimum(ratio * advantage[:, None], clipped * advantage[:, None]).mean()


def main():
    torch.manual_seed(33)
    gen = torch.Generator().manual_seed(34)
    policy = LlamaForCausalLM(LlamaConfig(
        vocab_size=cfg.vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, use_cache=False))
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    anchor = AnchorPenalty(reference, gen)
    opt = torch.optim.AdamW(policy.parameters(), lr=cfg.lr, weight_decay=0.0)
    for step in range(1, cfg.steps + 1):
        prompts = torch.randint(cfg.vocab, (cfg.groups, cfg.prompt), generator=gen).repeat_interleave(cfg.group_size, 0)
        ids = sample(policy, prompts, cfg.answer, gen)
        with torch.no_grad():
            old = sequence_log_prob(policy, ids, cfg.prompt)
        r = reward(ids[:, cfg.prompt:])
        loss = policy_loss(policy, ids, old, group_advantages(r))
        if step % cfg.anchor_every == 0:
            loss = loss + cfg.beta * anchor(policy)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        print(f"step {step} loss {loss.item():.5f} reward {r.mean().item():.4f}")
    print("finite", int(all(p.isfinite().all() for p in policy.parameters())))


if __name__ == "__main__":
    main()
