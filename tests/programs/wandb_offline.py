"""A program as people have it, with W&B offline. It knows nothing of Stethos."""

import sys

import numpy
import torch
import wandb

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
run = wandb.init(project="digits", config={"lr": 0.5, "net": {"depth": 3}}, mode="offline", dir=sys.argv[1])
wandb.config.batch = 16
for index in range(12):
    loss = (model(torch.randn(16, 4)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    wandb.log({"loss": loss, "eval": {"top1": index / 12}, "say": "hello", "curve": wandb.Histogram([1, 2])})
picture = numpy.zeros((300, 40, 3), dtype=numpy.uint8)
run.log(
    {"seen": [wandb.Image(picture), wandb.Image(picture[:9])], "rows": wandb.Table(["a", "b"], [[1, "<x>"], [2, "y"]])}
)
run.log({"accuracy": 0.5, "nothing": float("nan")}, step=30)
wandb.finish()
