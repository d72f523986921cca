"""Rows of other machines: a site's policy and spool, and the collector that puts them into a run directory."""
