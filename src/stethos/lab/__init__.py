"""A small federation on real data, with faults on demand: for demos, tests and benchmarks.

from stethos import lab
result = lab.federate("digits", faults=[lab.Fault("sign-flip", clients="c3", start=5)])
"""

from __future__ import annotations

from stethos.lab.clock import Timing
from stethos.lab.data import Data, load
from stethos.lab.fault import KINDS, ClientCrash, Fault
from stethos.lab.federation import federate
from stethos.lab.result import ClientRecord, Exchange, LabResult, RoundRecord
from stethos.lab.server import FedAdam, FedAvg, FedProx, Median, Strategy, TrimmedMean
from stethos.lab.split import IID, Dirichlet, QuantitySkew, Shards, Split

__all__ = [
    "IID", "KINDS", "ClientCrash", "ClientRecord", "Data", "Dirichlet", "Exchange", "Fault", "FedAdam", "FedAvg",
    "FedProx", "LabResult", "Median", "QuantitySkew", "RoundRecord", "Shards", "Split", "Strategy", "Timing",
    "TrimmedMean", "federate", "load",
]  # fmt: skip
