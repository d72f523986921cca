"""Where time, memory and bytes go, what holds a training up, and how runs differ. Reads tables only."""
