"""Bird-call classifier on syllable sequences. The field sheet lists, per clip, the species and the syllables found by
the segmenter (letters for types)."""
import csv
import io
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

SYLLABLES = "abcdefgh"
SPECIES = {"wren": "aabbc", "robin": "cdcde", "dunnock": "efgh", "siskin": "hgah"}


def field_sheet(clips=180, seed=9):
    rng = random.Random(seed)
    sheet = io.StringIO()
    out = csv.writer(sheet)
    out.writerow(["clip", "species", "syllables"])
    for clip in range(clips):
        species = rng.choice(list(SPECIES))
        song = [rng.choice(SPECIES[species]) for _ in range(rng.randint(3, 11))]
        if clip == 101:
            song = []                            # wind only, the segmenter found nothing
        out.writerow([clip, species, "".join(song)])
    return sheet.getvalue()


def load(text):
    names = sorted(SPECIES)
    for row in csv.DictReader(io.StringIO(text)):
        codes = torch.tensor([SYLLABLES.index(c) + 1 for c in row["syllables"].strip()], dtype=torch.long)
        yield codes, names.index(row["species"])


def collate(rows):
    songs, species = zip(*rows)
    lengths = torch.tensor([len(s) for s in songs])
    return pad_sequence(songs, batch_first=True), lengths, torch.tensor(species)


class SongEncoder(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.table = nn.Embedding(len(SYLLABLES) + 1, dim, padding_idx=0)
        self.gru = nn.GRU(dim, dim, batch_first=True, bidirectional=True)

    def forward(self, songs, lengths):
        packed = pack_padded_sequence(self.table(songs), lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        return torch.cat([last[0], last[1]], dim=1)


class SpeciesModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = SongEncoder()
        self.head = nn.Linear(48, len(SPECIES))

    def forward(self, songs, lengths):
        return self.head(self.encoder(songs, lengths))


def epoch(model, loader, opt, start):
    for k, (songs, lengths, species) in enumerate(loader, start):
        loss = nn.functional.cross_entropy(model(songs, lengths), species)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"{k:3d} {loss.item():.4f}", flush=True)
        start = k + 1
    return start


torch.manual_seed(10)
model = SpeciesModel()
opt = torch.optim.RMSprop(model.parameters(), lr=3e-3)
loader = DataLoader(list(load(field_sheet())), batch_size=12, collate_fn=collate)
nxt = 1
for _ in range(2):
    nxt = epoch(model, loader, opt, nxt)
print("finite", int(all(p.isfinite().all() for p in model.parameters())))
