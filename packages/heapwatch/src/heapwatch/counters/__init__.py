"""What the operating system, the C library and CUDA say about memory."""
