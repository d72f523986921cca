"""All detectors, by code, ours and then those of installed packages, and the ways to choose among them."""

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
from stethos.diagnose.federated.different_models import DifferentModels
from stethos.diagnose.federated.faulty_client import FaultyClient
from stethos.diagnose.federated.faulty_in_groups import FaultyInGroups
from stethos.diagnose.federated.label_skew import LabelSkew
from stethos.diagnose.federated.non_finite_model import NonFiniteModel
from stethos.diagnose.federated.over_filtered import OverFiltered
from stethos.diagnose.federated.quantity_skew import ClientQuantitySkew
from stethos.diagnose.federated.round_repeat import RoundRepeat
from stethos.diagnose.federated.server_instability import ServerInstability
from stethos.diagnose.federated.stalled_federation import StalledFederation
from stethos.diagnose.federated.unlike_client import UnlikeClient
from stethos.diagnose.federated.unseen_federation import UnseenFederation
from stethos.diagnose.installed import installed_detectors
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
from stethos.diagnose.performance import (
    AggregationBound,
    CommunicationBound,
    ComputeBound,
    CriticalClient,
    LaunchBound,
    SmallBatches,
    UnevenRanks,
)
from stethos.diagnose.program.constant_outputs import ConstantOutputs
from stethos.diagnose.program.growing_graph import GrowingGraph
from stethos.diagnose.program.helper_model import HelperModel
from stethos.diagnose.program.implausible_loss import ImplausibleLoss
from stethos.diagnose.program.learning_rate_collapse import LearningRateCollapse
from stethos.diagnose.program.lost_gradients import LostGradients
from stethos.diagnose.program.odd_batch import OddBatch
from stethos.diagnose.program.odd_evaluation import OddEvaluation
from stethos.diagnose.program.odd_graph import OddGraph
from stethos.diagnose.program.odd_optimizer import OddOptimizer
from stethos.diagnose.program.odd_schedule import OddSchedule
from stethos.diagnose.program.repeated_data import RepeatedData
from stethos.diagnose.program.telling_warning import TellingWarning
from stethos.diagnose.program.unoptimized_parameters import UnoptimizedParameters
from stethos.diagnose.program.wrong_call import WrongCall
from stethos.diagnose.program.wrong_loss import WrongLoss
from stethos.diagnose.program.wrong_mode import WrongMode
from stethos.diagnose.ranks.collective_mismatch import CollectiveMismatch
from stethos.diagnose.ranks.replica_divergence import ReplicaDivergence
from stethos.diagnose.system.client_memory import ClientMemory
from stethos.diagnose.system.data_loader_stall import DataLoaderStall
from stethos.diagnose.system.hang import Hang
from stethos.diagnose.system.low_utilisation import LowUtilisation
from stethos.diagnose.system.memory_growth import MemoryGrowth
from stethos.diagnose.system.missing_update import MissingUpdate
from stethos.diagnose.system.out_of_memory import OutOfMemory
from stethos.diagnose.system.out_of_memory_risk import OutOfMemoryRisk
from stethos.diagnose.system.oversize_update import OversizeUpdate
from stethos.diagnose.system.process_failure import ProcessFailure
from stethos.diagnose.system.rank_straggler import RankStraggler
from stethos.diagnose.system.row_loss import RowLoss
from stethos.diagnose.system.silent_corruption import SilentCorruption
from stethos.diagnose.system.stalled_process import StalledProcess
from stethos.diagnose.system.straggler import Straggler
from stethos.errors import UsageError
from stethos.nearest import did_you_mean

DETECTORS: dict[str, type[Detector]] = {
    detector.code: detector
    for detector in (
        # numbers
        NonFiniteLoss, NonFiniteGradients, NonFiniteWeights, ExplodingGradients, VanishingGradients, WeightExplosion,
        DeadUnits, SaturatedUnits, FrozenLayers, UpdateToWeightRatio, PoorInitialisation, SeriesAnomaly,
        # convergence
        Divergence, Oscillation, SlowProgress, Plateau, Overfitting, LearningRateTooHigh, LearningRateTooLow,
        DetachedLoss, GradientsNotZeroed,
        # program
        WrongLoss, UnoptimizedParameters, WrongMode, LostGradients, RepeatedData, OddBatch, LearningRateCollapse,
        ImplausibleLoss, TellingWarning, OddOptimizer, GrowingGraph, OddGraph, WrongCall, OddSchedule, HelperModel,
        ConstantOutputs, OddEvaluation,
        # ranks
        ReplicaDivergence, CollectiveMismatch,
        # federated
        FaultyClient, LabelSkew, ClientQuantitySkew, AggregationBias, ServerInstability, ClientAnomaly, RoundRepeat,
        NonFiniteModel, StalledFederation, DifferentModels, OverFiltered, UnseenFederation, FaultyInGroups,
        UnlikeClient,
        # system
        Straggler, RankStraggler, MissingUpdate, OversizeUpdate, DataLoaderStall, MemoryGrowth, OutOfMemoryRisk,
        OutOfMemory, ClientMemory, StalledProcess, ProcessFailure, LowUtilisation, RowLoss, Hang,
        SilentCorruption,
        # performance
        ComputeBound, CommunicationBound, AggregationBound, CriticalClient, SmallBatches, LaunchBound, UnevenRanks,
    )
}  # fmt: skip
DETECTORS |= installed_detectors(DETECTORS)

# Names and codes that were detectors of their own, and are now a kind of `missing-update`.
_FORMER = {
    "SYS003": "dropout", "client-dropout": "dropout", "SYS004": "timeout", "client-timeout": "timeout",
    "SYS005": "failure", "client-failure": "failure", "SYS006": "communication",
    "communication-failure": "communication",
}  # fmt: skip


def detector_named(key: str) -> type[Detector]:
    """A detector by code or name, in any case; UsageError if there is none."""
    for code, detector in DETECTORS.items():
        if key.lower() in (code.lower(), detector.name):
            return detector
    if any(key.lower() == name.lower() for name in _FORMER):
        return MissingUpdate
    raise _unknown(key)


def choose_detectors(
    thresholds: Mapping[str, Mapping[str, Any]] | None = None, silenced: Sequence[str] = ()
) -> list[Detector]:
    """Detectors with their thresholds set, without the silenced ones; both go by code or name."""
    given = thresholds or {}
    by_name: dict[str, type[Detector]] = {**dict.fromkeys(_FORMER, MissingUpdate), **DETECTORS}
    by_name |= {detector.name: detector for detector in DETECTORS.values()}
    for key in (*given, *silenced):
        if key not in by_name:
            raise _unknown(key)
    off = {by_name[key].code for key in silenced if key not in _FORMER}
    quiet = {_FORMER[key] for key in silenced if key in _FORMER}
    chosen: list[Detector] = []
    for code, detector in DETECTORS.items():
        if code not in off:
            values: dict[str, Any] = {}
            for key in sorted(given, key=lambda key: key in DETECTORS):  # a code has the last word
                values |= given[key] if by_name[key] is detector else {}
            chosen.append(_made(_without(detector, quiet), values))
    return chosen


def _without(detector: type[Detector], quiet: set[str]) -> type[Detector]:
    """`missing-update` without some of its kinds; any other detector as it is."""
    if detector is not MissingUpdate or not quiet:
        return detector
    kinds = tuple(kind for kind in MissingUpdate.kinds if kind not in quiet)
    return type("MissingUpdate", (MissingUpdate,), {"kinds": kinds})


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
    known = [*DETECTORS, *(detector.name for detector in DETECTORS.values())]
    return UsageError(f"no detector {key!r}", hint=did_you_mean(key, known, "see `stethos diagnose --list`"))
