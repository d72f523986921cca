"""Troubles of machines, links, processes and of the recording itself."""
