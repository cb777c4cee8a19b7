"""Write the metrics, images and log lines of a run."""
