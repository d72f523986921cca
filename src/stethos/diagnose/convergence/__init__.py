"""Trainings that do not get where they should: up, in circles, too slowly, or nowhere."""
