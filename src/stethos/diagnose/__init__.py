"""What is wrong, who did it, since when, how sure, what next: detectors over the tables of a run.

Reads tables only: no torch, no sockets.
"""
