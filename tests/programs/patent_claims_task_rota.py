"""Patent office: one encoder, three tasks in rotation (IPC section, masked claim terms, prior-art pairs)."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from torch import nn
from transformers import BertConfig, BertModel

TERMS = "rotor valve sensor polymer lattice coil gasket laser antibody catalyst".split()
FILLER = "a the said comprising wherein of first second according to claim cancelled".split()
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = {w: i for i, w in enumerate(SPECIAL + TERMS + FILLER)}
ROTA = ("section", "mlm", "pairs")


class Batch(dict):
    """What the collator returns: a dict that also knows its task and can move."""

    def __init__(self, task, **tensors):
        super().__init__(tensors)
        self.task = task

    def to(self, device):
        return type(self)(self.task, **{k: v.to(device) for k, v in self.items()})

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def encode(claims, length=12):
    ids = torch.zeros(len(claims), length, dtype=torch.long)
    for r, words in enumerate(claims):
        row = [VOCAB["[CLS]"]] + [VOCAB[w] for w in words][: length - 2] + [VOCAB["[SEP]"]]
        ids[r, : len(row)] = torch.tensor(row)
    return ids


def write_claim(g, section):
    pick = lambda xs: xs[int(torch.randint(len(xs), (1,), generator=g))]
    mine = TERMS[2 * section: 2 * section + 2]
    return ["a", pick(mine), "comprising", pick(TERMS), pick(FILLER[:9]), pick(mine)]


def docket(step, g, size=4):
    task = ROTA[(step - 1) % 3]
    sections = torch.randint(0, 5, (size,), generator=g)
    claims = [write_claim(g, int(s)) for s in sections]
    if step in (16, 20, 21):
        # withdrawn applications keep their number and the text "claim cancelled"
        claims = [["claim", "cancelled"]] * size
    ids = encode(claims)
    mask = (ids != 0).long()
    match task:
        case "section":
            return Batch(task, input_ids=ids, attention_mask=mask, labels=sections)
        case "mlm":
            # whole technical terms are masked, fillers teach nothing
            is_term = (ids >= 4) & (ids < 4 + len(TERMS))
            hide = is_term & (torch.rand(ids.shape, generator=g) < 0.5)
            hide[:, 2] |= is_term[:, 2]
            return Batch(task, input_ids=ids.masked_fill(hide, VOCAB["[MASK]"]), attention_mask=mask,
                         labels=ids.masked_fill(~hide, -100))
        case "pairs":
            same = (sections[0::2] == sections[1::2]).float()
            return Batch(task, input_ids=ids, attention_mask=mask, labels=same)


class PatentEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = BertConfig(vocab_size=len(VOCAB), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                         intermediate_size=64, max_position_embeddings=16, hidden_dropout_prob=0.0,
                         attention_probs_dropout_prob=0.0, attn_implementation="eager")
        self.bert = BertModel(cfg, add_pooling_layer=False)
        self.section = nn.Linear(32, 5)
        self.term = nn.Linear(32, len(VOCAB))
        self.ce = nn.CrossEntropyLoss(ignore_index=-100)

    def forward(self, batch):
        h = self.bert(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        if batch.task == "section":
            return nn.functional.cross_entropy(self.section(h[:, 0]), batch.labels)
        if batch.task == "mlm":
            return self.ce(self.term(h).flatten(0, 1), batch.labels.flatten())
        a, b = h[0::2, 0], h[1::2, 0]
        return nn.functional.binary_cross_entropy_with_logits((a * b).mean(1), batch.labels)


def main():
    torch.manual_seed(1883)
    gen = torch.Generator().manual_seed(7)
    model = PatentEncoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=6)
    print("rota:", " -> ".join(ROTA))
    for step in range(1, 34):
        batch = docket(step, gen).to("cpu")
        loss = model(batch)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        print(f"step {step} [{batch.task}] loss={loss.item():.5f}")
    print("checksum", round(sum(float(p.detach().double().sum()) for p in model.parameters()), 5))


if __name__ == "__main__":
    main()
