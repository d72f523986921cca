"""What runs inside the training process: hooks, probes and the numbers they take."""
