"""Tests of heapwatch. Installed libraries may have a package of the same name, so this is one too."""
