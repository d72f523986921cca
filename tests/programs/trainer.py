"""Trains a tiny model with Hugging Face `Trainer`: trainer.py DIRECTORY; prints the sum of its weights at the end."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
WORDS = torch.randint(5, 60, (96, 12))


class Rows(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return len(WORDS)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        mask = torch.ones(12, dtype=torch.long)
        return {"input_ids": WORDS[index], "labels": (WORDS[index, 0] > 30).long(), "attention_mask": mask}


sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
model = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=64, max_position_embeddings=16))
arguments = TrainingArguments(
    sys.argv[1], num_train_epochs=3, per_device_train_batch_size=8, gradient_accumulation_steps=2, use_cpu=True,
    eval_strategy="epoch", save_strategy="no", report_to=[], learning_rate=1e-3, disable_tqdm=True, seed=1,
)  # fmt: skip
Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows()).train()
print(float(torch.cat([one.detach().double().flatten() for one in model.parameters()]).sum()))
