"""Passage re-ranking with a tiny BERT cross-encoder and the ApproxNDCG loss, on the Hugging Face Trainer."""
import logging
import tempfile

import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments, set_seed

logging.disable(logging.WARNING)
LIST, LENGTH, VOCAB = 5, 14, 120


def approx_ndcg(scores, relevance, temperature=0.5):
    """1 - ApproxNDCG (Qin et al. 2010), one list per row."""
    gaps = (scores[:, None, :] - scores[:, :, None]) / temperature
    rank = 0.5 + torch.sigmoid(gaps).sum(-1)
    gain = 2.0 ** relevance - 1.0
    dcg = (gain / torch.log2(1.0 + rank)).sum(-1)
    ideal = gain.sort(-1, descending=True).values
    places = torch.arange(1, relevance.size(1) + 1, dtype=scores.dtype)
    ideal_dcg = (ideal / torch.log2(1.0 + places)).sum(-1)
    return (1.0 - dcg / ideal_dcg).mean()


class JudgedQueries(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            query = torch.randint(5, VOCAB, (4,), generator=g)
            grades = torch.multinomial(torch.tensor([0.50, 0.32, 0.18]), LIST, replacement=True, generator=g)
            passages = []
            for grade in grades.tolist():
                text = torch.randint(5, VOCAB, (LENGTH - 6,), generator=g)
                text[: 2 * grade] = query[: 2 * grade]
                passages.append(torch.cat([torch.tensor([1]), query, torch.tensor([2]), text]))
            self.rows.append({"passages": torch.stack(passages), "grades": grades.float()})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = torch.cat([r["passages"] for r in rows])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "grades": torch.stack([r["grades"] for r in rows])}


class ListwiseTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        grades = inputs.pop("grades")
        outputs = model(**inputs)
        scores = outputs.logits.view(grades.shape)
        loss = approx_ndcg(scores, grades)
        print(f"step {self.state.global_step + 1} approx-ndcg loss {loss.item():.5f}", flush=True)
        return (loss, outputs) if return_outputs else loss


def main():
    set_seed(12)
    config = BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                        max_position_embeddings=32, num_labels=1, hidden_dropout_prob=0.0)
    model = BertForSequenceClassification(config)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=24, per_device_train_batch_size=3, learning_rate=1e-3,
                             lr_scheduler_type="constant", report_to=[], save_strategy="no", logging_strategy="no",
                             disable_tqdm=True, use_cpu=True, seed=12, remove_unused_columns=False)
    trainer = ListwiseTrainer(model=model, args=args, train_dataset=JudgedQueries(72, seed=4), data_collator=collate)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
