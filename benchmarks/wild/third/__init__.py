"""A third set of federations: its data, models, algorithms and faults, written without knowing the rules that judge."""
