"""Small programs that the agent runs in its scripts. Standard library only; each file works by itself."""
