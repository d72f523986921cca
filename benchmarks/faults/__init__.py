"""The fault benchmark: federations of the lab with known faults, and who finds them."""
