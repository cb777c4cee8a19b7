"""Population runs: recipe, components, dry run and orchestrator."""
