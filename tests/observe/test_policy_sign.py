"""The sign with which a loss takes the log-probabilities of chosen actions, read off its graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn import functional

from stethos.observe.policy_sign import has_rewards, policy_sign

torch.manual_seed(0)
SCORES = torch.randn(16, 3, requires_grad=True)
CHOSEN = Categorical(logits=SCORES)
ACTIONS = torch.randint(0, 3, (16,))
LIKELY = CHOSEN.log_prob(ACTIONS)
WORTH = torch.randn(16)
RATIO = (LIKELY - LIKELY.detach()).exp()
SHARES = functional.log_softmax(SCORES, 1)


@pytest.mark.parametrize(
    ("loss", "sign"),
    [
        ((LIKELY * WORTH).mean(), 1), (-(LIKELY * WORTH).mean(), -1), ((WORTH * LIKELY).sum() * -1, -1),
        (torch.stack([one * 3.0 for one in LIKELY]).sum(), 1), (torch.stack([-one * 3.0 for one in LIKELY]).sum(), -1),
        (-torch.minimum(RATIO * WORTH, RATIO.clamp(0.8, 1.2) * WORTH).mean(), -1),
        (torch.minimum(RATIO * WORTH, RATIO.clamp(0.8, 1.2) * WORTH).mean(), 1),
        ((functional.cross_entropy(SCORES, ACTIONS, reduction="none") * WORTH).mean(), -1),
        ((SHARES[torch.arange(16), ACTIONS] * WORTH).mean() - 0.01 * CHOSEN.entropy().mean(), 1),
        (-SHARES.gather(1, ACTIONS[:, None]).mean(), 0),  # a likelihood, weighed by nothing
        (functional.mse_loss(SCORES.gather(1, ACTIONS[:, None]), WORTH[:, None]), 0),  # values of actions
    ],
)  # fmt: skip
def test_whether_chosen_actions_become_rarer(loss: Tensor, sign: int) -> None:
    assert policy_sign(loss.grad_fn) == sign


def test_a_program_of_rewards_is_told_from_one_of_costs() -> None:
    def of_rewards() -> bool:
        reward = 1.0
        return has_rewards() and reward > 0

    def of_costs() -> bool:
        returns, tour_cost = 1.0, 2.0
        return has_rewards() and returns < tour_cost

    assert of_rewards() and not of_costs()
