"""Reading run directories: finding them, their catalogue, and SQL over their rows."""
