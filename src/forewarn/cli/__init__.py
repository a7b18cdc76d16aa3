"""The command line: one file per noun. All are clients of the control API except `serve`, the service."""
