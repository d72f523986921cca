"""Trains GPT-2 (124 M, Hugging Face) on random words on a GPU: a program that knows nothing of Stethos.

python benchmarks/gpt2_program.py JSON

The JSON names `steps`, `batch`, whether to `compile`, and the step at which a gradient has a NaN (`nan_at`).
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

_BLOCK = 20  # steps between two readings of the clock
_FIRST = 60  # steps that are left out: kernels are compiled, memory is taken
_BROKEN = "transformer.h.7.mlp.c_fc.weight"


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    whole = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda()
    model = torch.compile(whole) if job.get("compile") else whole
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4, fused=True)
    broken = dict(whole.named_parameters())[_BROKEN]
    block_ms, began = [], time.perf_counter()
    for step in range(job["steps"]):
        words = torch.randint(0, 50257, (job["batch"], 1024), device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=words, labels=words).loss
        loss.backward()
        if step == job.get("nan_at"):
            broken.grad.view(-1)[12345] = float("nan")
        optimizer.step()
        if step % _BLOCK == _BLOCK - 1:
            torch.cuda.synchronize()
            now = time.perf_counter()
            if step >= _FIRST:
                block_ms.append((now - began) * 1e3 / _BLOCK)
            began = now
    print(f"{statistics.median(block_ms):.3f}" if block_ms else "nan")


if __name__ == "__main__":
    main()
