"""Span denoising with a small T5, accelerate in bfloat16, gradient accumulation and checkpointing."""
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration

PAD, EOS, FIRST_SENTINEL, WORDS = 0, 1, 2, 60     # ids 2..9 are sentinels, 10..69 words


class Spans(Dataset):
    def __init__(self, n, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.rows = [self.row() for _ in range(n)]

    def row(self):
        length = int(torch.randint(14, 28, (1,), generator=self.gen))
        start = int(torch.randint(WORDS, (1,), generator=self.gen))
        stride = int(torch.randint(1, 4, (1,), generator=self.gen))
        return [10 + (start + stride * i) % WORDS for i in range(length)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    sources, targets = [], []
    for row in rows:
        source, target, at, sentinel = [], [], 0, FIRST_SENTINEL
        while at < len(row):
            if at % 7 == 4:
                source.append(sentinel)
                target += [sentinel] + row[at:at + 2]
                at, sentinel = at + 2, sentinel + 1
            else:
                source.append(row[at])
                at += 1
        sources.append(source + [EOS])
        targets.append(target + [EOS])
    longest, wide = max(map(len, sources)), max(map(len, targets))
    ids = torch.tensor([s + [PAD] * (longest - len(s)) for s in sources])
    labels = torch.tensor([t + [-100] * (wide - len(t)) for t in targets])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def main():
    set_seed(17)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    config = T5Config(vocab_size=72, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
                      feed_forward_proj="gated-gelu", pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
    model = T5ForConditionalGeneration(config)
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.03)
    loader = DataLoader(Spans(96, seed=5), batch_size=8, shuffle=True, collate_fn=collate,
                        generator=torch.Generator().manual_seed(1))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    done, running = 0, []
    for epoch in range(3):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), float("inf"))   # only to look at the norm
                optimizer.step()
                optimizer.zero_grad()
            running.append(loss.item())
            if accelerator.sync_gradients:
                done += 1
                accelerator.print(f"epoch {epoch} step {done} loss {sum(running) / len(running):.4f}")
                running = []
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
