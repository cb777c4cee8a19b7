"""What the incident reports claimed, measured."""
