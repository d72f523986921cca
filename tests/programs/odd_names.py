"""A federated training whose clients, layers, logs and metrics have names that a page must not take for markup."""

from __future__ import annotations

import logging
import sys

import torch
from torch import nn

import stethos

NAMES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "'; DROP TABLE steps; --",
    "{{7*7}}${7*7}",
    "javascript:alert(3)",
    "a\u202eb" + "x" * 200,
)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("<b>bold</b>", nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._modules["<b>bold</b>"](x)  # type: ignore[misc, no-any-return]


def main() -> None:
    model = Odd()
    with stethos.federation("<i>odd</i>", model=model, dir=sys.argv[1], run=sys.argv[2], progress=False) as federation:
        for number, one in enumerate(federation.rounds(3)):
            states = []
            for name in NAMES:
                with one.client(name) as site:
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    loss = model(torch.randn(8, 4)).square().mean()
                    loss.backward()
                    optimizer.step()
                    states.append({key: value.clone() for key, value in model.state_dict().items()})
                    site.update(states[-1], samples=8, loss=loss.item())
            model.load_state_dict(states[0])
            one.evaluate(loss=1.0 / (number + 1), accuracy=0.5)
            logging.getLogger("<u>log</u>").warning("<script>alert(4)</script>")
            stethos.log(**{"<s>metric</s>": float(number)})


if __name__ == "__main__":
    main()
