"""Federations that the lab does not play: hand-written loops over real data, to measure whom `diagnose` accuses."""
