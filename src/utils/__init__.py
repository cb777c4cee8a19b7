"""Shared utilities, which import no other package of Reverie."""
