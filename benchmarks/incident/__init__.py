"""Measurements of the claims in the incident reports."""
