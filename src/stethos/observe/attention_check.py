"""What is odd about attention written out by hand: heads cut by a view, scores that are not scaled, the wrong axis.

Shapes and operations of the graph are read, and of a softmax a few of the shares that it has saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from stethos.observe.autograd_graph import name_of, saved, shape_of
from stethos.observe.batch_print import is_readable, numbers_of

Remark = tuple[str, str]
Shape = tuple[int, ...]

# What hands on scores, or a query or key, without scaling it.
_PASSED = (
    "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "TransposeBackward", "PermuteBackward",
    "ExpandBackward", "CloneBackward", "ToCopyBackward", "AliasBackward", "SplitBackward", "SplitWithSizesBackward",
    "UnbindBackward", "SelectBackward", "SliceBackward", "SqueezeBackward", "UnsqueezeBackward",
)  # fmt: skip
_MASKS = ("MaskedFillBackward", "AddBackward", "SubBackward", "WhereBackward")
_LINEAR = ("AddmmBackward", "MmBackward", "LinearBackward")
_MOST_PASSED = 12
_LEAST_SIZE = 8  # of a head: scores of smaller ones are hardly too large
_LARGE = 0.75  # deviation of the scores of one query
_MOST_ROWS = 256


class AttentionCheck:
    """Takes the softmaxes and products of a graph; `remarks` says what is odd about all of its attention."""

    def __init__(self) -> None:
        self.has_products = False
        self._found: list[Remark] = []
        self._spreads: list[tuple[int, float]] = []  # of unscaled scores: the size of a head, and their deviation
        self._others = 0  # softmaxes over scores that are scaled, or of which that is not known

    def note_softmax(self, node: Any, shape: Shape, dim: int) -> None:
        """A softmax, perhaps over scores."""
        size = _unscaled_size(node)
        if size is None:
            return
        if len(shape) == 4 and dim == 1 and shape[2] == shape[3] != shape[1] > 1:
            self._found.append((
                "softmax-over-heads", f"softmax over dimension 1 of scores of shape {shape}, which are the heads"
            ))  # fmt: skip
        if size < _LEAST_SIZE or dim != len(shape) - 1:
            self._others += 1
            return
        spread = _spread_of(saved(node, "result"))
        if spread is not None:
            self._spreads.append((size, spread))

    def note_product(self, node: Any) -> None:
        """A product of shares and what they weigh: it adds up over the last dimension of the shares."""
        self.has_products = True
        self._note_shares(node.next_functions[0][0], 1)

    def note_sum(self, node: Any) -> None:
        """A sum over the second dimension of three, perhaps of shares times what they weigh."""
        dims = [int(dim) - (int(dim) >> 63 << 64) for dim in getattr(node, "_saved_dim", None) or ()]
        product = node.next_functions[0][0]
        sizes = tuple(getattr(node, "_saved_self_sym_sizes", ()))
        if len(sizes) == 3 and dims in ([1], [-2]) and product is not None and name_of(product) == "MulBackward":
            for edge, _ in product.next_functions:
                self._note_shares(edge, 1)

    def _note_shares(self, node: Any, dim: int) -> None:
        """Shares of places by samples that are added up over another dimension than that in which they add up to 1."""
        if node is None or name_of(node) not in ("UnsqueezeBackward", "ExpandBackward"):
            return
        for _ in range(3):
            if node is None or name_of(node) not in ("UnsqueezeBackward", "ExpandBackward"):
                break
            node = node.next_functions[0][0]
        if node is None or name_of(node) != "SoftmaxBackward":
            return
        shape, given = shape_of(node), int(node._saved_dim)
        given = given - (given >> 63 << 64)
        if len(shape) == 2 and min(shape) > 1 and given % 2 != dim:
            self._found.append((
                "softmax-over-samples",
                f"softmax over dimension 0 of shape {shape}, whose dimension 1 is then added up",
            ))  # fmt: skip

    def remarks(self, views: set[tuple[Shape, Shape]]) -> Iterator[Remark]:
        """`views` are shapes before and after a view."""
        yield from dict.fromkeys(self._found)
        if self._spreads and not self._others:
            size, spread = max(self._spreads, key=lambda one: one[1])
            if spread > _LARGE:
                yield (
                    "scores-not-scaled",
                    f"products of queries and keys of {size} numbers, with a deviation of {spread:.2g}, "
                    "are given to softmax as they are",
                )
        for was, now in sorted(views) if self.has_products else ():
            if _cuts_heads(was, now):
                yield "heads-mixed", f"a tensor of shape {was} is viewed as {now}, without a transposition"


def _unscaled_size(node: Any) -> int | None:
    """The length of the queries whose products with keys a softmax gets as they are; 0 if they are scaled.

    None where there is no such product.
    """
    one: Any = node.next_functions[0][0]
    for _ in range(_MOST_PASSED):
        if one is None:
            return None
        name = name_of(one)
        if name == "BmmBackward":
            break
        parents = [edge[0] for edge in one.next_functions if edge[0] is not None]
        if name in ("MulBackward", "DivBackward"):  # a constant, a temperature that is learned, or a mask
            return 0 if any(_reaches_product(parent) for parent in parents) else None
        if len(parents) != 1 or name not in (*_PASSED, *_MASKS):
            return 0 if name == "AddBackward" and any(_reaches_product(parent) for parent in parents) else None
        one = parents[0]
    else:
        return None
    edges = [edge[0] for edge in one.next_functions[:2]]
    if len(edges) != 2 or not all(map(_is_from_linear, edges)):
        return 0
    shape = shape_of(edges[0])
    return int(shape[-1]) if shape else 0


def _reaches_product(node: Any) -> bool:
    for _ in range(_MOST_PASSED):
        if node is None or name_of(node) == "BmmBackward":
            return node is not None
        parents = [edge[0] for edge in node.next_functions if edge[0] is not None]
        if len(parents) != 1 or name_of(node) not in (*_PASSED, *_MASKS, "MulBackward", "DivBackward"):
            return False
        node = parents[0]
    return False


def _is_from_linear(node: Any) -> bool:
    """Whether a query or key is what a linear layer gives, and nothing has scaled it since."""
    for _ in range(_MOST_PASSED):
        if node is None:
            return False
        name = name_of(node)
        if name in _LINEAR:
            return True
        parents = [edge[0] for edge in node.next_functions if edge[0] is not None]
        if name == "AddBackward":  # the bias of a layer that is applied to a table of more than two dimensions
            parents = [parent for parent in parents if not hasattr(parent, "variable")]
        elif name not in _PASSED:
            return False
        if len(parents) != 1:
            return False
        node = parents[0]
    return False


def _spread_of(shares: torch.Tensor | None) -> float | None:
    """The deviation of the scores that a softmax was given, in the median row; from what it has made of them."""
    if shares is None or not is_readable(shares) or shares.shape[-1] < 2:
        return None
    rows = shares.detach().reshape(-1, shares.shape[-1])
    table = numbers_of(rows[:: max(1, len(rows) // _MOST_ROWS)][:_MOST_ROWS]).astype(np.float64)
    with np.errstate(all="ignore"):
        scores = np.where(table > 0, np.log(table), np.nan)  # what is masked has a share of 0
        counts = np.isfinite(scores).sum(1)
        spreads = np.nanstd(scores[counts > 1], axis=1)
    return float(np.median(spreads)) if len(spreads) else None


def _cuts_heads(was: Shape, now: Shape) -> bool:
    """Whether a view brings heads before the sequence, or behind it again, as only a transposition can."""
    if len(was) == 3 and len(now) == 4:
        batch, length, size = was
        heads = now[1]
        is_split = now[0] == batch and now[2] == length and heads * now[3] == size
    elif len(was) == 3 == len(now):
        batch, length, size = was
        heads = now[0] // batch if batch and not now[0] % batch else 0
        is_split = now[1] == length and heads * now[2] == size
    elif len(was) == 4 and len(now) == 3:
        batch, heads, length, size = was
        is_split = now[0] == batch and now[1] == length and now[2] == heads * size and size > 1
    else:
        return False
    return is_split and heads > 1 and length > 1 and heads != length
