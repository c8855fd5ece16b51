"""Programs that answer inference requests, and the host that starts them."""
