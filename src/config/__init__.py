"""The whole run as one dataclass, and the way from what a user types to it."""
