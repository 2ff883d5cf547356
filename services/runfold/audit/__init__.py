"""Checking a log: do its records keep what Runfold promises? Needs no worker, no tables, and trusts neither.

    violations = verify(deliveries)  # in offset order within each partition

The checks are in `partition` (what runs share), `invariants` (a run) and `steps`; exported logs are in `files`.
"""

from runfold.audit.auditor import Auditor, verify
from runfold.audit.findings import Violation

__all__ = ["Auditor", "Violation", "verify"]
