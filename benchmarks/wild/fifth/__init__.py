"""A fifth set of federations: whole families that no earlier set has, written without knowing the rules that judge.

`families.FIFTH` lists its data, models, algorithms, splits and faults. It was written down on 18 November 2026 at
05:45 UTC, before any of its federations was recorded or judged. Its author had read the documentation of
`stethos.federation` and the sets before, and neither the rules nor what they had been measured at. It shares nothing
with the earlier sets but the way in which a set is played.
"""
