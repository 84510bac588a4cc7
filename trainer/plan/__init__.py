"""Memory and time of a set-up from config files alone (``python -m trainer plan``)."""
