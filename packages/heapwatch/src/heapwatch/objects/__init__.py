"""Find which Python objects, tensors and graphs retain memory."""
