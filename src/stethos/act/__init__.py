"""What is done about findings: corrections of a training that goes on, and their record."""
