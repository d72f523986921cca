"""Attacks on recording and reading: long ones by `make attack`, short ones in the suite."""
