"""What needs Triton, and is imported only where there is a GPU."""
