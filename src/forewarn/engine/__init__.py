"""Commands and their execution one after the other: decide, commit, publish."""
