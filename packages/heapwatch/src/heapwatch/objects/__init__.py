"""Which Python objects, tensors and graphs hold memory."""
