"""What makes a training slower than it could be. The sums are done in `profile/`."""
