"""Tags stage directions (who, where, prop, manner) with a packed bidirectional LSTM; accelerate, accumulation of two."""
import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

TAGS = ["O", "WHO", "WHERE", "PROP", "MANNER"]
LEXICON = {
    "WHO": ["hamlet", "nurse", "clown", "duke", "maid"],
    "WHERE": ["balcony", "court", "cellar", "heath"],
    "PROP": ["skull", "lantern", "letter", "dagger", "crown"],
    "MANNER": ["softly", "aside", "weeping", "drunk"],
    "O": ["enter", "exit", "with", "to", "the", "and", "a", "from"],
}
VOCAB = {w: i + 1 for i, w in enumerate(w for words in LEXICON.values() for w in words)}
PAD_TAG = -100


def make_direction(rng):
    """Manner is rare: most directions only say who goes where."""
    tags = ["O", "WHO", "O", "O", "WHERE"]
    if rng.random() < 0.6:
        tags += ["O", "O", "PROP"]
    if rng.random() < 0.12:
        tags += ["MANNER"]
    if rng.random() < 0.3:
        tags += ["O", "WHO"]
    return [VOCAB[rng.choice(LEXICON[t])] for t in tags], [TAGS.index(t) for t in tags]


def collate(rows):
    rows = sorted(rows, key=lambda r: -len(r[0]))
    lengths = torch.tensor([len(r[0]) for r in rows])
    words = pad_sequence([torch.tensor(r[0]) for r in rows], batch_first=True)
    tags = pad_sequence([torch.tensor(r[1]) for r in rows], batch_first=True, padding_value=PAD_TAG)
    return {"words": words, "tags": tags, "lengths": lengths}


class Tagger(nn.Module):
    def __init__(self, dim=32, hidden=40):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB) + 1, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, len(TAGS))

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.emb(words), lengths.cpu(), batch_first=True)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(out)


def balanced_loss(logits, tags):
    """Inverse frequency within the batch. A tag that the batch lacks has weight inf, which no token asks for."""
    flat = tags.flatten()
    counts = torch.bincount(flat[flat != PAD_TAG], minlength=len(TAGS)).float()
    weight = counts.sum() / (len(TAGS) * counts)
    return nn.functional.cross_entropy(logits.flatten(0, 1), flat, weight=weight, ignore_index=PAD_TAG), weight


@torch.no_grad()
def recall(logits, tags):
    guess = logits.argmax(-1)
    return [(guess[tags == k] == k).float().mean().item() for k in range(len(TAGS))]   # nan: none in the batch


def main():
    set_seed(23)
    rng = random.Random(9)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    rows = [make_direction(rng) for _ in range(480)]
    loader = DataLoader(rows, batch_size=6, shuffle=True, collate_fn=collate)
    model = Tagger()
    opt = torch.optim.NAdam(model.parameters(), lr=4e-3)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    step, losses = 0, []
    for batch in loader:
        with accelerator.accumulate(model):
            logits = model(batch["words"], batch["lengths"])
            loss, weight = balanced_loss(logits, batch["tags"])
            accelerator.backward(loss)
            losses.append(loss.item())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            scores = " ".join(f"{t}={r:.3f}" for t, r in zip(TAGS, recall(logits, batch["tags"])))
            print(f"{step:3d} loss {sum(losses) / len(losses):.6f} rarest {weight.max().item():.3f} {scores}", flush=True)
            losses = []


if __name__ == "__main__":
    main()
