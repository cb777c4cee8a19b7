"""Watch the memory of any PyTorch program: `python -m reverie.memory.watch script.py`."""
