"""A fourth set of federations: whole families that no earlier set has, written without knowing the rules that judge.

`families.FOURTH` lists its data, models, algorithms, splits and faults. It was written down on 17 November 2026 at
15:30 UTC, before any of its federations was recorded or judged; it shares nothing with the earlier sets.
"""
