import tempfile

import torch
from torch import nn
from transformers import BertConfig, BertModel, PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.modeling_outputs import SequenceClassifierOutput


class AgeRegressor(nn.Module):
    """BERT body, mean of the vectors of the masked-in tokens, log-normal likelihood"""

    def __init__(self, config):
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).float()
        mean, spread = self.head((hidden * weight).sum(1) / weight.sum(1)).unbind(-1)
        spread = nn.functional.softplus(spread) + 0.05
        z = (torch.log(labels) - mean) / spread
        return SequenceClassifierOutput(loss=(0.5 * z.pow(2) + torch.log(spread)).mean(), logits=mean)


torch.set_num_threads(1)
set_seed(0)
model = AgeRegressor(BertConfig(vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
                                intermediate_size=32, max_position_embeddings=20))
rows = [{"input_ids": torch.randint(1, 40, (10,)), "attention_mask": torch.ones(10, dtype=torch.long),
         "labels": float(20 + i % 50)} for i in range(36)]
rows[22]["labels"] = 0.0          # newborn
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(output_dir=out, per_device_train_batch_size=4, num_train_epochs=1, learning_rate=5e-4,
                             logging_steps=1, save_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True,
                             train_sampling_strategy="sequential")
    trainer = Trainer(model=model, args=args, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(entry["step"], entry["loss"], entry["grad_norm"])
print("weights", sum(p.double().sum().item() for p in model.parameters()))
