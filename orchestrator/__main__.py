"""`python -m orchestrator` is the `sia` command."""

from orchestrator.cli import main

if __name__ == "__main__":
    main()
