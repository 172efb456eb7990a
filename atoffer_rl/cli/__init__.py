"""The command line: one module a command, shared options, and errors as one line."""
