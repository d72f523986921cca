"""A program as people have it: argparse, a data loader, a scheduler, TensorBoard. It knows nothing of Stethos."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--logs", required=True)
arguments = parser.parse_args()
model = torch.nn.Sequential(torch.nn.Linear(4, arguments.width), torch.nn.ReLU(), torch.nn.Linear(arguments.width, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=16)
writer = SummaryWriter(arguments.logs)
step = 0
for epoch in range(3):
    for inputs, targets in loader:
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        writer.add_scalar("train/loss", loss.item(), step)
        step += 1
    writer.add_scalar("val/<b>accuracy</b>", torch.tensor(epoch / 4), epoch)
    writer.add_scalar("val/nan", float("nan"), epoch)
    writer.add_text("note", f"epoch {epoch}", epoch)
    writer.add_histogram("weights", model[0].weight, epoch)
    writer.add_image("picture", torch.rand(3, 400, 20), epoch)
writer.close()
