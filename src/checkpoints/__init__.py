"""What a run leaves on disk: its folder, its checkpoints, and their copy on another file system."""
