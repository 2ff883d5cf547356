"""The composition root: here, and only here, the ports meet their adapters. One module per process, so that each imports no more
than it uses: the keeper knows no model and no API."""
