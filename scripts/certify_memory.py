"""Certify that memory is flat: `python scripts/certify_memory.py experiment=dreamer_incident`.

With `--ab` it measures what the incident reports claimed instead: what stays without no_grad or detaching,
and what a stored loss and a tensor made by `torch.from_numpy` hold.
"""

if __name__ == "__main__":  # the processes of environments import this file
    from reverie.commands.entry import certify

    certify()
