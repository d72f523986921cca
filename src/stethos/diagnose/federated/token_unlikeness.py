"""Texts whose words are lost to the token for unknown ones: by another vocabulary, another tokenizer or dropped words.

Whom a site serves changes which words come how often, and how long texts are. It does not put one and the same token
at the beginning, in the middle and at the end of texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.data_sketch import Sketch
from stethos.diagnose.federated.standing_out import middle_of

Array = npt.NDArray[np.float64]
_FEWEST_SAMPLES, _FEWEST_CLIENTS, _FEWEST_PLACES, _PARTS = 15, 4, 4, 3
_OF_ONE = 0.7  # the error with one sample and one place: neighbouring words go together
_FILLING = 0.15  # of samples more at one end than at the other


def unknown_words(clients: Sequence[Sketch | None]) -> tuple[Array, Array]:
    """How much more often than at the median client one token stands in two thirds of a text, and its error."""
    more, error = np.full((2, len(clients)), np.nan)
    known = [
        place for place, one in enumerate(clients)
        if one is not None and one.kind == "tokens" and one.n >= _FEWEST_SAMPLES and one.atoms is not None
        and one.atom_shares is not None and one.atoms.shape[1] >= _FEWEST_PLACES
    ]  # fmt: skip
    widths = [one.atoms.shape[1] for place in known if (one := clients[place]) is not None and one.atoms is not None]
    if len(known) < _FEWEST_CLIENTS or len(set(widths)) != 1:
        return more, error
    atoms = np.array([clients[place].atoms for place in known])  # type: ignore[union-attr]
    shares = np.array([clients[place].atom_shares for place in known])  # type: ignore[union-attr]
    count = np.array([clients[place].n for place in known])  # type: ignore[union-attr]
    parts = np.array_split(np.arange(atoms.shape[2]), _PARTS)
    best = np.full(len(known), 0.0)
    for token in np.unique(atoms[shares > 0]):
        often = np.where(atoms == token, shares, 0.0).max(1)  # client x place
        usual = middle_of(often)
        ends = usual[parts[0]].mean(), usual[parts[-1]].mean()
        if max(ends) > min(ends) + _FILLING:  # what fills up short texts says how long they are
            continue
        risen = np.array([(often - usual)[:, part].mean(1) for part in parts])
        best = np.maximum(best, np.sort(risen, axis=0)[1])  # one part may be filled up
    more[known], error[known] = best, _OF_ONE / np.sqrt(count * len(parts[0]))
    return more, error
