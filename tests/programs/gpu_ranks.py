"""Ranks that share one GPU. Arguments: `ddp` or `fsdp`, and after which step one bit of rank 1 becomes wrong."""

from __future__ import annotations

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KIND, WRONG_AT = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo" if KIND == "ddp" else "nccl")
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8)).cuda()
model: nn.Module = inner
if KIND == "ddp":
    model = DistributedDataParallel(inner)
else:
    from torch.distributed.fsdp import fully_shard

    for part in (inner[2], inner):
        fully_shard(part)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(200):
    inputs = torch.randn(32, 256, device="cuda")
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    if step == WRONG_AT and dist.get_rank() == 1:
        with torch.no_grad():
            inner[2].weight.view(torch.int32)[3, 3] ^= 1 << 12
    time.sleep(0.02)
digest = hashlib.sha256()
for parameter in model.parameters():
    whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    digest.update(whole.detach().cpu().numpy().tobytes())
print(digest.hexdigest())
dist.destroy_process_group()
