"""Trains on the GPU, bare or observed: python -m benchmarks.gpu_trainer RESULT JOB"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import torch

import stethos
from benchmarks.gpu_model import WIDTH, make_model

_BATCH, _LENGTH = 5, 1024
_WARMUP, _AGAIN = 20, 20


def main() -> None:
    job = json.loads(sys.argv[2])
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.use_deterministic_algorithms(True)  # else two bare trainings differ
    torch.utils.deterministic.fill_uninitialized_memory = False
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(_BATCH, _LENGTH, WIDTH, device="cuda")
    watch = stethos.watch(dir=job["directory"], name=job["name"], preset=job["preset"]) if job["preset"] else None

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()

    for _ in range(_WARMUP):
        step()
    torch.cuda.synchronize()
    time.sleep(3.0)  # the kernel is compiled once per machine: not a matter of steps
    for _ in range(_AGAIN):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(job["steps"]):
        step()
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - began) * 1e3 / job["steps"]
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    samples = 0
    if watch is not None:
        watch.close()
        with stethos.open_run(Path(job["directory"]) / job["name"]) as run:
            ((samples,),) = run.rows("SELECT count(DISTINCT step) FROM layers").values
    result = {
        "step_ms": step_ms, "digest": digest.hexdigest(), "steps": job["steps"], "warmup": _WARMUP + _AGAIN,
        "batch": _BATCH, "length": _LENGTH, "parameters": sum(p.numel() for p in model.parameters()),
        "samples": samples,
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
