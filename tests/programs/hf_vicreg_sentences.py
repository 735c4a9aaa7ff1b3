"""Sentence encoder with HF Trainer and a VICReg objective; the corpus does not divide by the batch size."""
import tempfile
import torch
import transformers
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainingArguments, set_seed

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()


class Pairs(Dataset):
    def __init__(self, n=8 * 9 + 1, L=10, vocab=60):
        g = torch.Generator().manual_seed(2)
        a = torch.randint(2, vocab, (n, L), generator=g)
        swap = torch.rand(n, L, generator=g) < 0.2
        self.a, self.b = a, torch.where(swap, torch.ones_like(a), a)

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return {"input_ids": self.a[i], "other_ids": self.b[i], "labels": torch.tensor(0)}


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                         intermediate_size=48, max_position_embeddings=16), add_pooling_layer=False)
        self.proj = torch.nn.Linear(32, 16)

    def forward(self, input_ids):
        return self.proj(self.bert(input_ids=input_ids).last_hidden_state.mean(1))


def off_diagonal(m):
    return m.flatten()[:-1].view(m.size(0) - 1, m.size(0) + 1)[:, 1:]


class VICRegTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        za, zb = model(inputs["input_ids"]), model(inputs["other_ids"])
        loss = 25 * torch.nn.functional.mse_loss(za, zb)
        for z in (za, zb):
            spread = torch.sqrt(z.var(dim=0) + 1e-4)
            loss = loss + 25 * torch.relu(1 - spread).mean()
            c = z - z.mean(0)
            cov = c.T @ c / max(len(z) - 1, 1)
            loss = loss + off_diagonal(cov).square().sum() / z.size(1)
        return (loss, za) if return_outputs else loss


def main():
    set_seed(17)
    model = Encoder()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=8, num_train_epochs=2, learning_rate=1e-3,
                                 logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
                                 remove_unused_columns=False, seed=17, logging_nan_inf_filter=False)
        VICRegTrainer(model=model, args=args, train_dataset=Pairs()).train()
    print("checksum", repr(sum(p.detach().double().sum().item() for p in model.parameters())))


if __name__ == "__main__":
    main()
