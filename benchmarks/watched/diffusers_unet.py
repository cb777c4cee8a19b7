"""Diffusers: a small, randomly initialized UNet that learns to denoise images from a memory-mapped file."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4_000, help="optimiser steps")
steps = parser.parse_args().steps


class Images(Dataset):
    """Images in a file of float32 numbers."""

    def __init__(self, path):
        self.path = path
        self.images = np.memmap(path, np.float32, "r", shape=(512, 1, 16, 16))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.from_numpy(self.images[index].copy())


torch.set_num_threads(1)
torch.manual_seed(1)
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "images.bin"
    np.random.default_rng(1).standard_normal((512, 1, 16, 16), np.float32).tofile(file)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    unet = UNet2DModel(16, 1, 1, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, **blocks)
    scheduler = DDPMScheduler(num_train_timesteps=100)
    ema = EMAModel(unet.parameters())
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
    loader = DataLoader(Images(file), batch_size=4, shuffle=True)
    for epoch in range(steps // 128):
        for images in loader:
            noise = torch.randn_like(images)
            times = torch.randint(0, 100, (len(images),))
            predicted = unet(scheduler.add_noise(images, noise, times), times).sample
            loss = functional.mse_loss(predicted, noise)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ema.step(unet.parameters())
        print(f"{epoch} {loss.item():.3f}", flush=True)
