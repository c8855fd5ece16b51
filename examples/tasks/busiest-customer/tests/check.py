"""Half for the number, half for the name; the last line of that form on the agent's standard output is its answer."""

import re
from pathlib import Path

said = Path("/logs/agent/stdout.txt").read_bytes()[-100_000:].decode("utf-8", "replace")
answers = re.findall(r"customers: *(\d+), *busiest: *([a-z.]+)", said)
customers, busiest = answers[-1] if answers else ("", "")
print((customers == "47") / 2 + (busiest == "vera.berg") / 2)
