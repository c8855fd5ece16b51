"""`sia watch`: the reading side (feeds), the panels (pure functions from values to Rich renderables), the application.

A watcher only reads `.sia`: SQLite connections that can't write, journals, live files. It asks for something by writing
a request row (`orchestrator.requests`). So any number of them can be attached, at any time, and none slows the owners.
"""
