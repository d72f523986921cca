"""From the training process to segments: the ring in the trainer, the drainer beside it."""
