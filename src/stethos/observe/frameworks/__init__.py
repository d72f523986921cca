"""What training frameworks know of a training, and torch does not: epochs, evaluations, accumulation."""
