"""Repeats the forward and backward pass of chosen steps, and compares the results to the last bit (`--sdc`)."""
