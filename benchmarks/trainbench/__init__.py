"""Faults of ordinary training made on purpose, and healthy trainings: what is found, and who is accused."""
