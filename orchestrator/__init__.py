"""Campaigns, verdicts, promotion and supervision of sandboxed agent instances."""
