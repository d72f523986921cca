"""Healthy programs that others have published inside packages of the registry, run as they are."""
