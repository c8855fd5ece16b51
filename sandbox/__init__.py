"""A Bubblewrap sandbox as a value and as a process. Knows nothing of agents."""
