"""A population run: its recipe, its parts, its dry run, its orchestrator."""
