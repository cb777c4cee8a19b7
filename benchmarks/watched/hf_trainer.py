"""Hugging Face's Trainer: a tiny, randomly initialized GPT-2 on random tokens."""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4_000, help="optimiser steps")
steps = parser.parse_args().steps

torch.set_num_threads(1)
torch.manual_seed(1)
tokens = torch.randint(0, 256, (2_048, 32))
data = [{"input_ids": row, "labels": row} for row in tokens]
shape = GPT2Config(
    vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=8,
        logging_steps=200,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    Trainer(model=GPT2LMHeadModel(shape), args=arguments, train_dataset=data).train()
