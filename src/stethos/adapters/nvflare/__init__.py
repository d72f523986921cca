"""NVFlare jobs, recorded without a change to their training code.

    from stethos.adapters.nvflare import observe_job

    recipe = FedAvgRecipe(...)          # or a FedJob with all its parts
    observe_job(recipe)
    recipe.execute(SimEnv(num_clients=3))

One widget watches the server's events and one those of each client. An
invitation to the round goes out in a header of the task, and what the client
saw of its turn comes back as a public property of its context: the weights,
and what aggregators and filters are given, stay as they are.
"""

from __future__ import annotations

from stethos.adapters.nvflare.job import observe_job

__all__ = ["observe_job"]
