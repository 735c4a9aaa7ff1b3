# Subject tags for new acquisitions. A very small BERT, our own subject headings, class weights because
# "Fiction" drowns everything else.
import random
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments, set_seed

set_seed(5)

HEADINGS = ["Fiction", "Local history", "Cookery", "Natural history", "Uncatalogued"]
WORDS = {
    "Fiction": "love night murder house stranger winter secret daughter".split(),
    "Local history": "parish mill railway market quarry church canal chapel".split(),
    "Cookery": "bread jam soup oven pickles cakes supper cheese".split(),
    "Natural history": "moss birds fungi hedges otters ponds moths ferns".split(),
    "Uncatalogued": "box loose donation lot bundle unknown misc shelf".split(),
}
GLUE = "the of and in a our with".split()
VOCAB = {w: i for i, w in enumerate(["[PAD]", "[CLS]", "[SEP]"] + GLUE + sum(WORDS.values(), []))}


class Acquisitions(Dataset):
    """The accession register, in the order in which the books came through the door."""

    def __init__(self, n=128):
        rng = random.Random(77)
        self.rows = []
        for k in range(n):
            if 67 <= k < 74:                    # what Mr Pemberton left us: two boxes, nobody has looked into them yet
                tag = "Uncatalogued"
            else:
                tag = rng.choices(HEADINGS, [8, 3, 3, 2, 1])[0]
            title = [rng.choice(WORDS[tag]) if rng.random() < 0.5 else rng.choice(GLUE) for _ in range(rng.randint(4, 9))]
            self.rows.append((title, HEADINGS.index(tag)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        title, tag = self.rows[k]
        ids = [VOCAB["[CLS]"]] + [VOCAB[w] for w in title] + [VOCAB["[SEP]"]]
        pad = 12 - len(ids)
        return {"input_ids": torch.tensor(ids + [0] * pad), "attention_mask": torch.tensor([1] * len(ids) + [0] * pad),
                "labels": torch.tensor(tag)}

    def class_weights(self):
        counts = torch.zeros(len(HEADINGS))
        for _, tag in self.rows:
            counts[tag] += 1
        weights = len(self.rows) / (len(HEADINGS) * counts)
        weights[HEADINGS.index("Uncatalogued")] = 0.0      # not a subject, we do not want to learn it
        return weights


class TagTrainer(Trainer):
    def __init__(self, *args, class_weights, **kw):
        super().__init__(*args, **kw)
        self.criterion = nn.CrossEntropyLoss(weight=class_weights)
        self.calls = 0

    def _get_train_sampler(self, *args, **kw):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        labels = inputs.pop("labels")
        out = model(**inputs)
        loss = self.criterion(out.logits, labels)
        self.calls += 1
        hits = (out.logits.argmax(-1) == labels).sum().item()
        print(f"batch {self.calls}: loss={loss.item():.6f} right={hits}/{len(labels)}", flush=True)
        return (loss, out) if return_outputs else loss


register = Acquisitions()
config = BertConfig(vocab_size=len(VOCAB), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                    max_position_embeddings=16, num_labels=len(HEADINGS))
model = BertForSequenceClassification(config)

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(output_dir=folder, per_device_train_batch_size=4, num_train_epochs=1, learning_rate=2e-3,
                             lr_scheduler_type="linear", warmup_steps=4, weight_decay=0.01, save_strategy="no", report_to=[],
                             disable_tqdm=True, use_cpu=True, logging_steps=1000, seed=5)
    trainer = TagTrainer(model=model, args=args, train_dataset=register, class_weights=register.class_weights())
    trainer.remove_callback(PrinterCallback)
    trainer.train()

print("%.6f" % sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)
