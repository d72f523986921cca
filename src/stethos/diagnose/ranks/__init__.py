"""Detectors of ranks that should do the same and do not."""
