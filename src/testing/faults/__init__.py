"""Faults that leak, injected into a real run on purpose: `certify.fault=<name>`, and the leak zoo."""

from .registry import FAULTS as FAULTS
from .registry import Fault as Fault
from .registry import find_fault as find_fault
