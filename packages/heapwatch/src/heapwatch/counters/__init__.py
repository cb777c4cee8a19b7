"""Memory counters of the operating system, the C library and CUDA."""
