"""Seeing into a running process and acting on it: the agent inside, stacks from outside, and who asks whom."""
