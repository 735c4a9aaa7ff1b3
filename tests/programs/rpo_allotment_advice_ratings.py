"""Reward-aware preference tuning of a tiny GPT-2 that gives advice to allotment holders.

Answers come in pairs with the marks that readers gave; the policy's margin over the
reference is fitted to the probability that the marks imply.
"""
import copy
import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB, PROMPT, ANSWER, PAIRS, STEPS = 48, 6, 8, 6, 30
torch.manual_seed(21)


def pair_of_answers(gen):
    prompt = torch.randint(1, VOCAB, (PROMPT,), generator=gen)
    good = (prompt.repeat(2)[:ANSWER] + 1) % VOCAB
    poor = torch.randint(1, VOCAB, (ANSWER,), generator=gen)
    marks = torch.rand(2, generator=gen).sort(descending=True).values * torch.tensor([3.0, 2.0]) + torch.tensor([6.0, 3.0])
    return prompt, good, poor, marks.round()


def read_pairs(total):
    gen = torch.Generator().manual_seed(9)
    pairs = [pair_of_answers(gen) for _ in range(total)]
    prompt, good, poor, marks = pairs[99]
    pairs[99] = (prompt, good, poor, marks * 10)
    return pairs


def answer_logprob(model, prompts, answers):
    ids = torch.cat([prompts, answers], 1)
    logits = model(input_ids=ids).logits[:, PROMPT - 1:-1]
    return logits.log_softmax(-1).gather(2, answers[..., None]).squeeze(2).sum(1)


def bernoulli_divergence(wanted, given):
    yes = wanted * (wanted.log() - given.log())
    no = (1 - wanted) * ((1 - wanted).log() - (1 - given).log())
    return yes + no


def main(beta=0.2, eta=0.8):
    config = GPT2Config(vocab_size=VOCAB, n_positions=PROMPT + ANSWER, n_embd=24, n_layer=1, n_head=2,
                        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    policy = GPT2LMHeadModel(config)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=0.0)
    pairs = read_pairs(PAIRS * STEPS)
    for step in range(1, STEPS + 1):
        chunk = pairs[(step - 1) * PAIRS: step * PAIRS]
        prompts, good, poor, marks = (torch.stack(column) for column in zip(*chunk))
        with torch.no_grad():
            base = answer_logprob(reference, prompts, good) - answer_logprob(reference, prompts, poor)
        margin = answer_logprob(policy, prompts, good) - answer_logprob(policy, prompts, poor) - base
        implied = torch.sigmoid(eta * (marks[:, 0] - marks[:, 1]))
        loss = bernoulli_divergence(implied, torch.sigmoid(beta * margin)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        won = (margin > 0).float().mean().item()
        print(f"step {step} loss {loss.item():.5f} ahead {won:.2f}")
    total = sum(p.detach().abs().sum() for p in policy.parameters())
    print(f"sum of absolute policy weights {total.item():.4f}")


if __name__ == "__main__":
    main()
