"""Faults of ordinary training, made on purpose, and healthy trainings: what the detectors find, and whom they accuse."""
