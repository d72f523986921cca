"""All detectors, by code, and the ways to choose among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from stethos.diagnose.convergence.detached_loss import DetachedLoss
from stethos.diagnose.convergence.divergence import Divergence
from stethos.diagnose.convergence.gradients_not_zeroed import GradientsNotZeroed
from stethos.diagnose.convergence.learning_rate_too_high import LearningRateTooHigh
from stethos.diagnose.convergence.learning_rate_too_low import LearningRateTooLow
from stethos.diagnose.convergence.oscillation import Oscillation
from stethos.diagnose.convergence.overfitting import Overfitting
from stethos.diagnose.convergence.plateau import Plateau
from stethos.diagnose.convergence.slow_progress import SlowProgress
from stethos.diagnose.detector import Detector
from stethos.diagnose.federated.aggregation_bias import AggregationBias
from stethos.diagnose.federated.client_anomaly import ClientAnomaly
from stethos.diagnose.federated.faulty_client import FaultyClient
from stethos.diagnose.federated.label_skew import LabelSkew
from stethos.diagnose.federated.non_finite_model import NonFiniteModel
from stethos.diagnose.federated.quantity_skew import QuantitySkew
from stethos.diagnose.federated.round_repeat import RoundRepeat
from stethos.diagnose.federated.server_instability import ServerInstability
from stethos.diagnose.numbers.dead_units import DeadUnits
from stethos.diagnose.numbers.exploding_gradients import ExplodingGradients
from stethos.diagnose.numbers.frozen_layers import FrozenLayers
from stethos.diagnose.numbers.non_finite_gradients import NonFiniteGradients
from stethos.diagnose.numbers.non_finite_loss import NonFiniteLoss
from stethos.diagnose.numbers.non_finite_weights import NonFiniteWeights
from stethos.diagnose.numbers.poor_initialisation import PoorInitialisation
from stethos.diagnose.numbers.saturated_units import SaturatedUnits
from stethos.diagnose.numbers.series_anomaly import SeriesAnomaly
from stethos.diagnose.numbers.update_to_weight_ratio import UpdateToWeightRatio
from stethos.diagnose.numbers.vanishing_gradients import VanishingGradients
from stethos.diagnose.numbers.weight_explosion import WeightExplosion
from stethos.diagnose.performance.aggregation_bound import AggregationBound
from stethos.diagnose.performance.communication_bound import CommunicationBound
from stethos.diagnose.performance.compute_bound import ComputeBound
from stethos.diagnose.performance.critical_client import CriticalClient
from stethos.diagnose.performance.launch_bound import LaunchBound
from stethos.diagnose.performance.small_batches import SmallBatches
from stethos.diagnose.performance.uneven_ranks import UnevenRanks
from stethos.diagnose.system.client_memory import ClientMemory
from stethos.diagnose.system.communication_failure import CommunicationFailure
from stethos.diagnose.system.data_loader_stall import DataLoaderStall
from stethos.diagnose.system.dropout import ClientDropout
from stethos.diagnose.system.failure import ClientFailure
from stethos.diagnose.system.hang import Hang
from stethos.diagnose.system.low_utilisation import LowUtilisation
from stethos.diagnose.system.memory_growth import MemoryGrowth
from stethos.diagnose.system.out_of_memory_risk import OutOfMemoryRisk
from stethos.diagnose.system.oversize_update import OversizeUpdate
from stethos.diagnose.system.process_failure import ProcessFailure
from stethos.diagnose.system.rank_straggler import RankStraggler
from stethos.diagnose.system.row_loss import RowLoss
from stethos.diagnose.system.stalled_process import StalledProcess
from stethos.diagnose.system.straggler import Straggler
from stethos.diagnose.system.timeout import ClientTimeout
from stethos.errors import UsageError

DETECTORS: dict[str, type[Detector]] = {
    detector.code: detector
    for detector in (
        # numbers
        NonFiniteLoss, NonFiniteGradients, NonFiniteWeights, ExplodingGradients, VanishingGradients, WeightExplosion,
        DeadUnits, SaturatedUnits, FrozenLayers, UpdateToWeightRatio, PoorInitialisation, SeriesAnomaly,
        # convergence
        Divergence, Oscillation, SlowProgress, Plateau, Overfitting, LearningRateTooHigh, LearningRateTooLow,
        DetachedLoss, GradientsNotZeroed,
        # federated
        FaultyClient, LabelSkew, QuantitySkew, AggregationBias, ServerInstability, ClientAnomaly, RoundRepeat,
        NonFiniteModel,
        # system
        Straggler, RankStraggler, ClientDropout, ClientTimeout, ClientFailure, CommunicationFailure, OversizeUpdate,
        DataLoaderStall, MemoryGrowth, OutOfMemoryRisk, ClientMemory, StalledProcess, ProcessFailure, LowUtilisation,
        RowLoss, Hang,
        # performance
        ComputeBound, CommunicationBound, AggregationBound, CriticalClient, SmallBatches, LaunchBound, UnevenRanks,
    )
}  # fmt: skip


def detector_named(key: str) -> type[Detector]:
    """A detector by code or name, in any case; UsageError if there is none."""
    for code, detector in DETECTORS.items():
        if key.lower() in (code.lower(), detector.name):
            return detector
    raise _unknown(key)


def choose_detectors(
    thresholds: Mapping[str, Mapping[str, Any]] | None = None, silenced: Sequence[str] = ()
) -> list[Detector]:
    """Detectors with their thresholds set, without the silenced ones; both go by code or name."""
    by_name = {**DETECTORS, **{detector.name: detector for detector in DETECTORS.values()}}
    for key in (*(thresholds or {}), *silenced):
        if key not in by_name:
            raise _unknown(key)
    off = {by_name[key].code for key in silenced}
    chosen: list[Detector] = []
    for code, detector in DETECTORS.items():
        if code not in off:
            values = {**(thresholds or {}).get(detector.name, {}), **(thresholds or {}).get(code, {})}
            chosen.append(_made(detector, values))
    return chosen


def _made(detector: type[Detector], values: Mapping[str, Any]) -> Detector:
    known = {field.name: field for field in fields(detector)}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"{detector.name} has no threshold {name!r}", hint=f"it has {', '.join(known) or 'none'}")
        default = known[name].default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{detector.name}.{name} is a number, not {value!r}", hint=f"the default is {default!r}")
    return detector(**values)


def _unknown(key: str) -> UsageError:
    import difflib

    known = [*DETECTORS, *(detector.name for detector in DETECTORS.values())]
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    return UsageError(
        f"no detector {key!r}", hint=f"did you mean {', '.join(near)}?" if near else "see `stethos diagnose --list`"
    )
