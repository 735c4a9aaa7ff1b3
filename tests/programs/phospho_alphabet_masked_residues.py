"""Masked residues of kinase substrates with BertForMaskedLM.

After half of the run the alphabet gets three letters for phosphorylated residues (pS, pT, pY); the embedding
is resized, and a new AdamW is made, as the old one holds the tensors of the old size.
"""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import torch
from transformers import BertConfig, BertForMaskedLM

AMINO = "ACDEFGHIKLMNPQRSTVWY"
PAD, CLS, SEP, MASK = 0, 1, 2, 3
TOKEN = {a: i + 4 for i, a in enumerate(AMINO)}
PHOSPHO = {"S": 24, "T": 25, "Y": 26}


def substrates(gen, n, with_phospho):
    rows = []
    for _ in range(n):
        body = [AMINO[i] for i in torch.randint(0, 20, (int(torch.randint(6, 15, (), generator=gen)),), generator=gen)]
        site = "STY"[int(torch.randint(0, 3, (), generator=gen))]
        peptide = [TOKEN[a] for a in ["R", "R"] + body[:2]]
        peptide += [PHOSPHO[site] if with_phospho else TOKEN[site], TOKEN["P"]]
        peptide += [TOKEN[a] for a in body[2:]]
        rows.append([CLS] + peptide + [SEP])
    width = max(map(len, rows))
    ids = torch.tensor([r + [PAD] * (width - len(r)) for r in rows])
    return ids, (ids != PAD).long()


def mask_residues(ids, gen, share=0.2):
    labels = ids.clone()
    chosen = (torch.rand(ids.shape, generator=gen) < share) & (ids > MASK)
    chosen[:, 1] = True  # the first arginine is always asked for
    labels[~chosen] = -100
    return ids.masked_fill(chosen, MASK), labels


def new_optimizer(model):
    decay = [p for n, p in model.named_parameters() if p.dim() > 1]
    rest = [p for n, p in model.named_parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=4e-3)


def train_step(model, optimizer, inputs, attention, labels):
    loss = model(input_ids=inputs, attention_mask=attention, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    torch.manual_seed(2024)
    gen = torch.Generator().manual_seed(8)
    config = BertConfig(vocab_size=24, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
                        max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForMaskedLM(config)
    model.train()
    optimizer = new_optimizer(model)
    for step in range(1, 31):
        if step == 16:
            model.resize_token_embeddings(27, mean_resizing=False)
            with torch.no_grad():
                table = model.get_input_embeddings().weight
                for residue, row in PHOSPHO.items():
                    table[row] = table[TOKEN[residue]]
            optimizer = new_optimizer(model)
            print("alphabet now has", model.config.vocab_size, "letters")
        ids, attention = substrates(gen, 12, with_phospho=step >= 16)
        inputs, labels = mask_residues(ids, gen)
        value = train_step(model, optimizer, inputs, attention, labels)
        print(f"step {step:2d}  masked {int((labels != -100).sum()):3d}  loss {value:.4f}")
    print("sum of squared weights:", sum(p.detach().double().pow(2).sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
