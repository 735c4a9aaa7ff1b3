"""Fine-tuning of a small causal model on the macros of a support desk.

python support_macros_linear_decay.py [--micro-batch 6 --accumulate 4]
"""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

QUESTIONS = ["where is my parcel", "how do i return this", "the lamp does not work", "can i change my order", "my invoice is wrong"]
ANSWERS = ["it leaves the depot today", "print the label and send it back", "please unplug it for a minute", "yes until it is packed", "a new one is on its way"]
CHARS = sorted(set("".join(QUESTIONS + ANSWERS))) + ["?", "\n"]
IDS = {c: i + 1 for i, c in enumerate(CHARS)}


class Macros(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(8)
        self.picks = torch.randint(0, len(QUESTIONS), (n,), generator=g).tolist()

    def __len__(self):
        return len(self.picks)

    def __getitem__(self, i):
        q, a = QUESTIONS[self.picks[i]] + "?", ANSWERS[self.picks[i]] + "\n"
        ids = [IDS[c] for c in q + a]
        return torch.tensor(ids), torch.tensor([-100] * len(q) + ids[len(q):])


def pad(rows):
    ids = nn.utils.rnn.pad_sequence([r[0] for r in rows], batch_first=True)
    labels = nn.utils.rnn.pad_sequence([r[1] for r in rows], batch_first=True, padding_value=-100)
    return ids, labels


class Assistant(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.tokens = nn.Embedding(vocab, d, padding_idx=0)
        self.positions = nn.Embedding(80, d)
        self.block = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        n = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n, device=ids.device)
        h = self.tokens(ids) + self.positions(torch.arange(n, device=ids.device))
        return self.head(self.norm(self.block(h, src_mask=mask, is_causal=True)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--micro-batch", type=int, default=6)
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--examples", type=int, default=768)
    a = ap.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Macros(a.examples), batch_size=a.micro_batch, collate_fn=pad, pin_memory=device.type == "cuda")
    model = Assistant(len(CHARS) + 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.01)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    updates = len(loader) // a.accumulate
    scheduler = LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4) * (1.0 - s / updates))
    done, running = 0, 0.0
    for i, (ids, labels) in enumerate(loader):
        ids, labels = ids.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        scaler.scale(loss / a.accumulate).backward()
        running += loss.item() / a.accumulate
        if (i + 1) % a.accumulate == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            print(f"update {done}/{updates} loss {running:.4f}")
            running = 0.0
        scheduler.step()
    print("mean square of the weights", f"{torch.cat([p.detach().flatten() for p in model.parameters()]).square().mean().item():.6f}")


if __name__ == "__main__":
    main()
