"""For observed programs of tests: the budget allows every sample after every step, however busy the machine is."""

import os

if "STETHOS_RUN" in os.environ:
    from stethos.observe.budget import Budget, SampleBudget

    SampleBudget.can_afford = lambda self: True  # type: ignore[method-assign]
    SampleBudget.stride = lambda self: 1  # type: ignore[method-assign]
    Budget.pause_ns = lambda self, accounting_ns, shortest_ns: 0  # type: ignore[method-assign]
