"""Detectors of mistakes in the program: its loss, its optimizer, its modes and its batches."""
