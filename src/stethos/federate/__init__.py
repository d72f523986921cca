"""Federated notions for any loop: rounds, clients, updates and their fingerprints."""
