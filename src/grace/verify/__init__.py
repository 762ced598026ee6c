"""The laws, run on any method: ``grace verify MODULE:CLASS``, or ``verify(method)`` in Python."""

from __future__ import annotations

from grace.verify.outcome import NORMAL, QUICK, THOROUGH, Finding, Profile
from grace.verify.peak import facts
from grace.verify.report import Report, verify

__all__ = ["NORMAL", "QUICK", "THOROUGH", "Finding", "Profile", "Report", "facts", "verify"]
