"""What a federated run was made of, kept bit by bit: captured, read again, re-executed and stepped through."""
