"""The ClientApp of the planted stalls: a vector instead of a model, so that it starts in a moment."""

import json
import os
import time

import numpy as np
from flower_plan import PLAN, VICTIM, burn, freeze, planted, say
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from stethos.adapters.flower import client_mod

app = ClientApp(mods=[client_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = message.content["arrays"].to_numpy_ndarrays()
    number = message.content["config"]["server-round"]
    if int(context.node_config["partition-id"]) == VICTIM:
        say("victim", str(context.node_id))
        if number == PLAN["round"]:
            plant()
    updated = ArrayRecord([array + np.float32(0.01) for array in arrays])
    metrics = MetricRecord({"num-examples": 8})
    return Message(RecordDict({"arrays": updated, "metrics": metrics}), reply_to=message)


def plant() -> None:
    match PLAN["kind"]:
        case "client-sleep":
            planted()
            time.sleep(600)
        case "client-stop":
            planted()
            freeze()
        case "cut-transfer":
            say("cut", json.dumps(os.getpid()))
            planted()
        case "slow-client":
            burn(45.0)
