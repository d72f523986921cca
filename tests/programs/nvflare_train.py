"""A training script for NVFlare's Client API, which knows nothing of us: nvflare_train.py FAULTS.

FAULTS is empty or a list like `site-2:nan:1,site-3:raise:2`: what a site does from which round on. With `wait` it goes
on once the file of NVFLARE_WAIT_FOR is there.
"""

from __future__ import annotations

import logging
import os
import sys
import time

import nvflare.client as flare
import torch
from nvflare_model import Net
from torch import nn

STEPS = 3


class LocalDataError(ValueError):
    pass


def load_batch(fault: str | None, x: torch.Tensor) -> torch.Tensor:
    if fault == "raise":
        raise LocalDataError("shard 7 is unreadable")
    return x


def main() -> None:
    torch.set_num_threads(1)
    faults = [fault.split(":") for fault in "".join(sys.argv[1:]).split(",") if fault]
    flare.init()
    site = flare.get_site_name()
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        active = [kind for who, kind, start in faults if who == site and model.current_round >= int(start)]
        fault = active[-1] if active else None
        while fault == "wait" and not os.path.exists(os.environ["NVFLARE_WAIT_FOR"]):
            time.sleep(0.05)
        draw = torch.Generator().manual_seed(1000 * int(site.split("-")[1]) + model.current_round)
        net = Net()
        net.load_state_dict({name: torch.as_tensor(value) for name, value in model.params.items()})
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        loss = torch.zeros(())
        for _ in range(STEPS):
            x = load_batch(fault, torch.randn(16, 6, generator=draw))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), (x.sum(1) > 0).long())
            loss.backward()
            optimizer.step()
        logging.getLogger("train").info("trained on %s", site)
        state = net.state_dict()
        if fault == "nan":
            state["head.weight"] = torch.full_like(state["head.weight"], torch.nan)
        flare.send(flare.FLModel(params=state, metrics={"loss": loss.item()}, meta={"NUM_STEPS_CURRENT_ROUND": STEPS}))


if __name__ == "__main__":
    main()
