"""Late interaction (ColBERT) for the by-laws of a town: token vectors, MaxSim, in-batch negatives.
Stop words and punctuation of a document are not indexed."""
import random
import warnings
import logging

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning as L  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

L.seed_everything(12, verbose=False)
rnd = random.Random(12)
STOP = {"the", "of", "it", "is", "as", "in", "no", "not", "shall", "be", "this", "and", ".", ",", "a", "by", "to", "on"}
TOPICS = {"dogs": ["leash", "kennel", "muzzle", "dog"], "market": ["stall", "scale", "butcher", "egg"],
          "fire": ["ladder", "chimney", "bucket", "straw"], "water": ["pump", "well", "ditch", "mill"],
          "night": ["watch", "lamp", "bell", "gate"], "roads": ["cart", "wheel", "gravel", "horse"]}
ADJ = ["public", "common", "upper", "lower", "north", "south"]


def bylaw(k):
    if k == 163:
        return "this is not to be .".split(), ["market", "egg", "common"]
    topic = rnd.choice(list(TOPICS))
    a, b = rnd.sample(TOPICS[topic], 2)
    adj = rnd.choice(ADJ)
    doc = ["the", a, "of", "the", adj, topic, "shall", "not", "be", "in", "a", b, "."]
    return doc, [topic, a, adj]


PAIRS = [bylaw(k) for k in range(384)]
WORDS = {w: i + 1 for i, w in enumerate(sorted(STOP | set(ADJ) | set(TOPICS) | {w for v in TOPICS.values() for w in v}))}


def collate(pairs):
    def pad(rows):
        width = max(map(len, rows))
        return torch.tensor([[WORDS[w] for w in r] + [0] * (width - len(r)) for r in rows])

    docs, queries = [d for d, _ in pairs], [q for _, q in pairs]
    d = pad(docs)
    stop = torch.tensor([0] + [WORDS[w] for w in STOP])
    return pad(queries), d, ~torch.isin(d, stop)


class ColBERT(L.LightningModule):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(len(WORDS) + 1, d, padding_idx=0)
        self.mix = nn.GRU(d, d // 2, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(d, 16, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        return F.normalize(self.proj(x + self.mix(x)[0]), dim=-1)

    def training_step(self, batch, i):
        q_ids, d_ids, indexed = batch
        q, d = self(q_ids), self(d_ids)
        sim = torch.einsum("iqc,jdc->ijqd", q, d)
        sim = sim.masked_fill(~indexed[None, :, None, :], -torch.inf)
        score = 6.0 * sim.amax(-1).mean(-1)
        loss = F.cross_entropy(score, torch.arange(len(score)))
        hits = (score.argmax(1) == torch.arange(len(score))).float().mean()
        print(f"step {i + 1} loss {loss.item():.4f} recall@1 {hits.item():.2f}", flush=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=6e-3)
        return [opt], [{"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 32), "interval": "step"}]


model = ColBERT()
trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0)
trainer.fit(model, DataLoader(PAIRS, batch_size=12, shuffle=True, collate_fn=collate,
                              generator=torch.Generator().manual_seed(0)))
print(f"weights {sum(p.detach().double().square().sum().item() for p in model.parameters()):.5f}")
