"""The command line: a table of commands, one file per command."""
