"""Jobs of several ranks with a planted fault in one of them, and healthy ones."""
