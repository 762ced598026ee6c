"""The laws, run on anybody's method: ``grace verify MODULE:CLASS``, or ``verify(method)`` in Python."""

from __future__ import annotations

from grace.verify.report import NORMAL, QUICK, THOROUGH, Finding, Profile, Report, verify

__all__ = ["NORMAL", "QUICK", "THOROUGH", "Finding", "Profile", "Report", "verify"]
