"""Adapters: what other federated-learning frameworks do, told to `federate`."""
