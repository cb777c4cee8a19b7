"""`reverie-certify`: a real run whose memory is judged at its end, resource by resource."""

from .main import main as main
