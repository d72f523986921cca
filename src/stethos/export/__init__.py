"""A run in other tools' formats: one module per format, made from tables alone."""
