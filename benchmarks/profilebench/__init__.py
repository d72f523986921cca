"""Trainings with a known bottleneck: does the profile name it, and none where there is none?"""
