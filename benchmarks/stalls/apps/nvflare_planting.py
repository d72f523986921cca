"""A widget that makes an NVFlare job stand still, and the job's tiny training."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.widgets.widget import Widget

VICTIM = "site-2"
_PLACES = {  # side, event and what to do
    "drop": ("server", EventType.AFTER_TASK_DATA_FILTER),
    "lost-result": ("client", EventType.BEFORE_SEND_TASK_RESULT),
    "aggregate-sleep": ("server", AppEventType.BEFORE_AGGREGATION),
    "server-stop": ("server", AppEventType.BEFORE_AGGREGATION),
    "slow-aggregate": ("server", AppEventType.BEFORE_AGGREGATION),
}


def plan() -> dict:
    return json.loads(os.environ["STALL_PLAN"])


def planted() -> None:
    Path(plan()["dir"], "planted").write_text(str(time.time()))


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


class Planting(Widget):
    """Stands still at one event of the planned round; comes after ours."""

    def __init__(self, side: str) -> None:
        super().__init__()
        self.side = side
        self.last_round = None

    def handle_event(self, event_type, fl_ctx):
        kind, number = plan()["kind"], plan()["round"]
        now = self._round(fl_ctx)
        if _PLACES.get(kind) != (self.side, event_type) or now != number:
            return
        if event_type == EventType.AFTER_TASK_DATA_FILTER and fl_ctx.get_peer_context().get_identity_name() != VICTIM:
            return
        if self.side == "client" and fl_ctx.get_identity_name() != VICTIM:
            return
        if kind == "slow-aggregate":
            burn(45.0)
            return
        planted()
        if kind == "server-stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            time.sleep(600)

    def _round(self, fl_ctx):
        task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        number = task.get_header(AppConstants.CURRENT_ROUND) if task is not None else None
        self.last_round = self.last_round if number is None else number
        known = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        return number if number is not None else self.last_round if self.side == "client" else known


class Adding(Executor):
    """Trains by adding a little."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        if shareable.get_header(AppConstants.CURRENT_ROUND) == plan()["round"] and fl_ctx.get_identity_name() == VICTIM:
            self._plant(plan()["kind"])
        weights = {name: np.asarray(value) + np.float32(0.01) for name, value in from_shareable(shareable).data.items()}
        return DXO(DataKind.WEIGHTS, data=weights, meta={"NUM_STEPS_CURRENT_ROUND": 8}).to_shareable()

    @staticmethod
    def _plant(kind):
        if kind == "slow-client":
            burn(45.0)
        elif kind.startswith("client-"):
            planted()
            if kind == "client-sleep":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGSTOP if kind == "client-stop" else signal.SIGKILL)
