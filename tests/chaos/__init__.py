"""Faults on a real broker under load, measured: ``python -m tests.chaos --short|--long [--only NAME]``. See docs/chaos.md."""
