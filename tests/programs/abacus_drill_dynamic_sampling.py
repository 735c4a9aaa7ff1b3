"""Group-relative policy optimisation on abacus drills: 'a+b=' must be answered with two digits.

Groups in which every answer earns the same carry no information; they are left out, and a round
without any informative group is not followed by an update.
"""
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(5)
PLUS, EQ = 10, 11
GROUP, PROMPTS, TOP_K = 8, 6, 9
policy = LlamaForCausalLM(LlamaConfig(vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8,
                                      pad_token_id=None, bos_token_id=None, eos_token_id=None))
opt = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0)


def drills(n):
    a = torch.randint(0, 4, (n,))
    b = torch.randint(0, 4, (n,))
    prompt = torch.stack([a, torch.full_like(a, PLUS), b, torch.full_like(a, EQ)], 1)
    return prompt, a + b


def shortlist(logits):
    floor = logits.topk(TOP_K, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < floor, float("-inf"))


@torch.no_grad()
def answer(prompt):
    ids = prompt
    for _ in range(2):
        scores = policy(ids).logits[:, -1]
        scores[:, 10:] = float("-inf")
        pick = torch.multinomial(F.softmax(shortlist(scores), -1), 1)
        ids = torch.cat([ids, pick], 1)
    return ids


def judge(ids, truth):
    said = ids[:, 4] * 10 + ids[:, 5]
    return (said == truth).float() + 0.25 * (ids[:, 4] == truth // 10).float()


updates = 0
for rnd in range(1, 41):
    prompt, truth = drills(PROMPTS)
    ids = answer(prompt.repeat_interleave(GROUP, 0))
    reward = judge(ids, truth.repeat_interleave(GROUP)).view(PROMPTS, GROUP)
    spread = reward.std(1, keepdim=True)
    useful = (spread.squeeze(1) > 0) & (reward.amax(1) >= 1.0)
    if not useful.any():
        print(f"round {rnd:2d} reward {reward.mean():.3f} groups 0 no update")
        continue
    advantage = ((reward - reward.mean(1, keepdim=True)) / spread)[useful].reshape(-1)
    rows = ids.view(PROMPTS, GROUP, -1)[useful].reshape(-1, ids.shape[1])
    logp = F.log_softmax(policy(rows).logits[:, 3:5], -1).gather(-1, rows[:, 4:6, None]).squeeze(-1)
    ratio = (logp - logp.detach()).exp()
    loss = -(ratio * advantage[:, None]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    updates += 1
    print(f"round {rnd:2d} reward {reward.mean():.3f} groups {int(useful.sum())} loss {abs(loss.item()):.5f}")

print("updates", updates)
print("weights, absolute sum:", round(sum(p.detach().abs().sum().item() for p in policy.parameters()), 4))
