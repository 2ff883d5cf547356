"""Checking a log: do its records keep what Runfold promises? Needs no worker, no tables, and trusts neither.

    violations = verify(deliveries)  # in offset order within each partition

The checks and their names are in `invariants` (of a run) and `partition` (of what runs share); exported logs are in `files`.
"""

from runfold.audit.auditor import Auditor, verify
from runfold.audit.findings import Violation

__all__ = ["Auditor", "Violation", "verify"]
