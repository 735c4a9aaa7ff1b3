"""Instruction tuning on a beekeeping helpdesk: own collator, loss on the response only."""
from dataclasses import dataclass
from typing import Iterator

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

PAD, BOS, EOS, SEP, VOCAB = 0, 1, 2, 3, 70
IGNORE = -100


@dataclass
class ResponseOnlyCollator:
    max_length: int = 24
    pad_to: int = 8

    def __call__(self, rows):
        encoded = []
        for instruction, response in rows:
            prompt = [BOS, *instruction, SEP]
            ids = (prompt + [*response, EOS])[: self.max_length]
            labels = ([IGNORE] * len(prompt) + [*response, EOS])[: self.max_length]
            encoded.append((ids, labels))
        width = max(len(i) for i, _ in encoded)
        width += -width % self.pad_to
        pad = lambda seq, fill: seq + [fill] * (width - len(seq))
        return {
            "input_ids": torch.tensor([pad(i, PAD) for i, _ in encoded]),
            "attention_mask": torch.tensor([pad([1] * len(i), 0) for i, _ in encoded]),
            "labels": torch.tensor([pad(l, IGNORE) for _, l in encoded]),
        }


def helpdesk(n: int) -> Iterator[tuple]:
    g = torch.Generator().manual_seed(77)
    for i in range(n):
        # every tenth batch is from the forum: instructions that fill the context to the end
        long = (i // 4) % 10 == 6
        size = 30 if long else int(torch.randint(3, 9, (1,), generator=g))
        instruction = torch.randint(4, VOCAB, (size,), generator=g).tolist()
        response = [4 + (t * 3) % (VOCAB - 4) for t in instruction[:5]]
        yield instruction, response


class Tally:
    """Sum of losses over supervised tokens; a batch with none of them costs nothing."""

    def __init__(self):
        self.tokens = 0

    def __call__(self, logits, labels):
        logits, labels = logits[:, :-1], labels[:, 1:]
        summed = F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=IGNORE, reduction="sum")
        count = (labels != IGNORE).sum()
        self.tokens += int(count)
        with torch.no_grad():
            hit = (logits.argmax(-1) == labels).sum() / count  # nan for the forum batches
        return summed / count.clamp(min=1), hit


def main():
    torch.manual_seed(15)
    model = GPTNeoXForCausalLM(GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, hidden_dropout=0.0, attention_dropout=0.0, bos_token_id=BOS, eos_token_id=EOS))
    loader = DataLoader(list(helpdesk(4 * 40)), batch_size=4, collate_fn=ResponseOnlyCollator())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    scheduler = OneCycleLR(optimizer, max_lr=6e-3, total_steps=len(loader) + 1)
    tally = Tally()
    running = None
    for step, batch in enumerate(loader, 1):
        labels = batch.pop("labels")
        loss, hit = tally(model(**batch).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if loss.item() > 0:
            running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        print(f"step {step:2d} loss {loss.item():.6f} smooth {running:.6f} hit {hit.item():.4f} seen {tally.tokens}")
    print("sum of parameters", sum(p.detach().double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
