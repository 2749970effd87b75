"""Repairing working states: what is wrong with a payload, and a state made of what is sound in it."""

from __future__ import annotations

from everthread.working.repair import Loss, RecoveryReport, SelfHealer, Validation

__all__ = ["Loss", "RecoveryReport", "SelfHealer", "Validation"]
