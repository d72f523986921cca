"""What travels between server and clients, and how to read what NVFlare sends anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.app_common.abstract.fl_model import MetaKey as ModelMetaKey
from nvflare.app_common.app_constant import AppConstants

from stethos.federate.site import NOTABLE
from stethos.federate.structure import bytes_of
from stethos.guard import Guard, attempt
from stethos.observe import boot

P = ParamSpec("P")
R = TypeVar("R")

HEADER = "stethos"  # of a task: the invitation
REPORT = "stethos_report"  # public property of the client's context: what it saw of its turn

_PLACE = "nvflare"
_WITHOUT_RECORDING = Guard()


def guarded(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call something of ours inside NVFlare; a failure is counted and noted, never raised."""
    session = boot.current_session()
    guard = session.guard if session is not None else _WITHOUT_RECORDING
    return guard.run(_PLACE, function, *args, **kwargs)


class Weights(NamedTuple):
    """Weights in a message: whole, or with `is_delta` their change."""

    state: Mapping[str, Any]
    is_delta: bool
    samples: int | None
    metrics: dict[str, float]


def weights_in(message: Shareable) -> Weights | None:
    """The weights that a message carries; None if it carries none."""
    dxo: DXO | None = attempt(from_shareable, message)
    if dxo is None or dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF) or not dxo.data:
        return None
    samples = attempt(int, dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND))
    metrics = dxo.get_meta_prop(ModelMetaKey.INITIAL_METRICS) or {}
    return Weights(dxo.data, dxo.data_kind == DataKind.WEIGHT_DIFF, samples, _numbers_in(metrics))


def _numbers_in(metrics: Any) -> dict[str, float]:
    """The plain numbers among the metrics, under names that are no other column's."""
    if not isinstance(metrics, Mapping):
        return {}
    known = {str(name): attempt(float, value) for name, value in metrics.items()}
    return {
        name if name in ("loss", "accuracy") or name not in NOTABLE else f"metric_{name}": number
        for name, number in known.items()
        if number is not None
    }


def bytes_in(message: Shareable) -> int | None:
    """Size of the weights in a message; None where it has only references to them, to be passed on."""
    weights = weights_in(message)
    values = list(weights.state.values()) if weights is not None else []
    return sum(map(bytes_of, values)) if values and all(hasattr(value, "nbytes") for value in values) else None


def round_of(message: Shareable) -> int | None:
    """The round that a task or a result belongs to."""
    number = message.get_header(AppConstants.CURRENT_ROUND)
    if number is None:
        number = message.get_cookie(AppConstants.CONTRIBUTION_ROUND)
    return attempt(int, number)


def failure_of(result: Shareable) -> str:
    """NVFlare's return code if it is not OK, else ""."""
    code = result.get_return_code(default=ReturnCode.OK)
    return "" if code == ReturnCode.OK else str(code)


def peer_name(fl_ctx: FLContext) -> str | None:
    """Who sent the request that is being handled."""
    peer = fl_ctx.get_peer_context()
    name = peer.get_identity_name(default="") if peer is not None else ""
    return str(name) or None


def take_report(result: Shareable, fl_ctx: FLContext) -> dict[str, Any]:
    """What the client saw of its turn; afterwards nothing of ours is left in the result or its context."""
    headers = result.get(ReservedHeaderKey.HEADERS)
    if isinstance(headers, dict):
        headers.pop(HEADER, None)  # an executor may answer with the task it was given
        props = headers.get(ReservedHeaderKey.PEER_PROPS)
        if isinstance(props, dict):
            props.pop(REPORT, None)
    peer = fl_ctx.get_peer_context()
    report = peer.get_prop(REPORT) if peer is not None else None
    if report is None:
        return {}
    peer.remove_prop(REPORT)
    return dict(report) if isinstance(report, Mapping) else {}
