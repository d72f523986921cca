"""What the servers of the fifth set make of the updates of a round, and how its clients make theirs smaller."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.wild.fourth.server import Arrived, State, mean_of


def aggregate(algorithm: str, base: State, arrived: list[Arrived]) -> State:
    """The next global model. A server takes no update that is not finite."""
    arrived = [one for one in arrived if all(bool(value.isfinite().all()) for value in one.state.values())]
    if not arrived:
        return base
    match algorithm:
        case "median":
            return {name: torch.stack([one.state[name] for one in arrived]).median(0)[0] for name in base}
        case "multi-krum":
            return mean_of(_nearest(arrived))
        case "norm-bounded":
            lengths = torch.stack([_change(one, base).norm() for one in arrived])
            shares = (lengths.median() / lengths.clamp_min(1e-12)).clamp_max(1)
            bounded = [
                one._replace(state={name: base[name].lerp(one.state[name], float(share)) for name in base})
                for one, share in zip(arrived, shares, strict=True)
            ]
            return mean_of(bounded)
        case "extrapolated":  # a longer step where updates point apart, as in FedExP
            mean = mean_of(arrived)
            squares = torch.stack([_change(one, base).square().sum() for one in arrived]).mean()
            of_mean = sum(float((mean[name] - base[name]).square().sum()) for name in base)
            step = min(max(1.0, float(squares) / (2 * of_mean + 1e-6)), 2.5)
            return {name: base[name] + step * (mean[name] - base[name]) for name in base}
    return mean_of(arrived)


def _change(one: Arrived, base: State) -> Tensor:
    return torch.cat([(one.state[name] - base[name]).reshape(-1) for name in base])


def _nearest(arrived: list[Arrived]) -> list[Arrived]:
    """All but the two (in small rounds one) whose nearest neighbours are farthest."""
    flat = torch.stack([torch.cat([value.reshape(-1) for value in one.state.values()]) for one in arrived])
    near = torch.cdist(flat, flat).sort(1)[0][:, 1 : max(2, len(arrived) - 3)].sum(1)
    left_out = 2 if len(arrived) > 6 else 1
    return [arrived[place] for place in near.argsort()[: max(1, len(arrived) - left_out)].tolist()]


def largest(change: State, share: float) -> State:
    """The largest entries of a change; the others are zero."""
    flat = torch.cat([value.reshape(-1) for value in change.values()]).abs().nan_to_num()
    limit = flat.kthvalue(max(1, int((1 - share) * len(flat))))[0]
    return {name: torch.where(value.abs() > limit, value, 0 * value) for name, value in change.items()}


def low_rank(change: State, rank: int = 3) -> State:
    """Each matrix of a change as a product of thin ones."""
    return {name: _thin(value, rank) if value.dim() > 1 else value for name, value in change.items()}


def _thin(value: Tensor, rank: int) -> Tensor:
    flat = value.flatten(1)
    if min(flat.shape) <= rank or not flat.isfinite().all():
        return value
    left, sizes, right = torch.linalg.svd(flat, full_matrices=False)
    return ((left[:, :rank] * sizes[:rank]) @ right[:rank]).reshape(value.shape)
