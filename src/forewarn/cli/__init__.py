"""The command line: one file for each noun, all clients of the control API, but `serve`, which is the service."""
