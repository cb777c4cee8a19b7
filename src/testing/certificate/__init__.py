"""The certificate that memory is flat."""
