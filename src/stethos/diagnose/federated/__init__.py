"""Troubles of federated trainings: faulty clients and their kinds, skew, aggregation."""
