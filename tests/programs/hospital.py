"""A client's turns at its own site, with a secret wherever a program could have one.

    hospital.py RUNS NAME SECRET LABELS

SECRET stands in metrics, logs, labels, layers' names, spans and the messages of exceptions; LABELS seeds a permutation
of the labels, on which nothing that may leave by default depends.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

import torch
from torch import nn

import stethos
from stethos.federate.invitation import Invitation
from stethos.federate.site import Site

SAMPLES, FEATURES, CLASSES, BATCH = 96, 6, 4, 32


def main(runs: str, name: str, secret: str, labels_seed: str) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES)
    mixed = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(int(labels_seed)))
    labels = mixed[torch.arange(SAMPLES) % CLASSES]
    stethos.watch(dir=runs, name=name, config={"ward": secret})
    model = nn.Sequential()
    model.add_module(secret, nn.Linear(FEATURES, 8))
    model.add_module("head", nn.Linear(8, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {one: value.clone() for one, value in model.state_dict().items()}  # by the server, each time the same
    for number in range(1, 4):
        with suppress(ValueError), Site(Invitation("f", "7", number), side="client") as site:
            site.note(label=secret)
            site.received(given)
            model.load_state_dict(given)
            site.confusion(labels, model(inputs).argmax(1))
            losses = []
            for at in range(0, SAMPLES, BATCH):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs[at : at + BATCH]), labels[at : at + BATCH])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            stethos.log(**{secret: losses[-1]})
            logging.getLogger(secret).error("patient %s", secret)
            with stethos.span(secret):
                accuracy = float((model(inputs).argmax(1) == labels).float().mean())
            told = {"accuracy": accuracy, f"of_{secret}": 1.0}
            site.update(model.state_dict(), samples=SAMPLES, loss=losses[-1], **told)
            if number == 3:
                raise ValueError(f"no row for {secret}")
    raise KeyError(secret)


if __name__ == "__main__":
    main(*sys.argv[1:])
