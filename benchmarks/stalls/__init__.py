"""Planted stalls of federations, and how long it takes until the right leg is named."""
