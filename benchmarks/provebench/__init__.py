"""What proofs, provenance and corrections achieve, on federations of the lab with known faults."""
