"""The standard agent: compile a context, ask the engine for one action, log, parse, act; again and again.

It shares no code with the orchestrator, only the written contract. `python -m instance` starts it.
"""
