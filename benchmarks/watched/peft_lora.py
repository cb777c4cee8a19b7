"""PEFT: LoRA fine-tuning of a tiny, randomly initialized GPT-2 on a sequence of tasks."""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4_000, help="optimiser steps")
steps = parser.parse_args().steps


class Meter:
    """Mean loss of a task."""

    def __init__(self, tokens):
        self.tokens, self.total, self.count = tokens, 0.0, 0

    def update(self, loss):
        """Add the loss of a batch."""
        self.total += loss
        self.count += 1


torch.set_num_threads(1)
torch.manual_seed(1)
shape = GPT2Config(
    vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
lora = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
model = get_peft_model(GPT2LMHeadModel(shape), lora)
trainable = [each for each in model.parameters() if each.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=1e-3)
for task in range(steps // 16):
    tokens = torch.randint(0, 256, (64, 32))
    meter = Meter(tokens)
    for batch in tokens.split(4):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        meter.update(loss.item())
    print(f"{task} {meter.total / meter.count:.3f}", flush=True)
